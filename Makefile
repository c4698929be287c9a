# Two commands do everything on a fresh machine with Python 3.11+ and make:  make run   and   make test
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
KERNEL_TESTS := tests/vllm tests/sglang tests/tiers tests/warm tests/workload tests/analysis

.PHONY: help run test lint types layers unit conformance nojit coverage mutation boundscheck slow docs wheel bench bench-peers study calibrate-cpu lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(VENV)/installed ## set up and run the quickstart scenario
	$(BIN)/prefixsim run quickstart

test: lint types layers unit ## everything a pull request must pass

lint: $(VENV)/dev ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev ## mypy, strict
	$(BIN)/mypy

layers: $(VENV)/dev ## import-linter: data goes one way
	$(BIN)/lint-imports

unit: $(VENV)/dev ## the default test lane (conformance included), 2 workers
	$(BIN)/prefixsim warmup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

conformance: $(VENV)/dev ## golden results of the real engines
	$(BIN)/python -m pytest -n 2 tests/vllm/test_vllm_conformance.py tests/vllm/test_groups.py tests/sglang

nojit: $(VENV)/dev ## kernels as plain Python: bounds-checked
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser" $(KERNEL_TESTS) $(COVERED)

coverage: ## the same, with branch coverage: the least covered files, and a floor (pyproject.toml)
	$(MAKE) nojit COVERED="--cov --cov-report="
	$(BIN)/coverage report --fail-under=0 | head -25
	$(BIN)/coverage report --format=total

mutation: $(VENV)/dev ## small faults in the memory modules, a sample of them: each must be noticed (SAMPLE=0: all)
	$(BIN)/python tests/mutation/lane.py --sample $(or $(SAMPLE),60) --minutes $(or $(MINUTES),60) --seed $(or $(SEED),0)

boundscheck: $(VENV)/dev ## compiled kernels with bounds checks (separate kernel cache)
	NUMBA_BOUNDSCHECK=1 PREFIXSIM_CACHE_DIR=$(CURDIR)/build/boundscheck $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser" $(KERNEL_TESTS)

slow: $(VENV)/dev ## the longer tests
	$(BIN)/python -m pytest -n 2 -m slow

docs: $(VENV)/dev ## HTML documentation, warnings are errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

wheel: $(VENV)/dev ## build the wheel and prove it in an empty folder
	bash tests/wheel_check.sh $(PYTHON) $(BIN)/python

bench: $(VENV)/dev ## timings, as ratios measured side by side
	$(BIN)/python bench/run.py

bench-peers: $(VENV)/dev ## the same with the peers, each in a virtual environment of its own
	$(BIN)/python bench/run.py --peers

study: $(VENV)/installed ## a small sweep and a plan, end to end
	$(BIN)/prefixsim sweep scenarios/studies/block_size.yaml --out runs/study-sweep
	$(BIN)/prefixsim plan scenarios/studies/plan_quick.yaml

lock: ## renew the locked development versions
	uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links --group dev --group docs pyproject.toml -o requirements/dev.txt --upgrade

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .hypothesis runs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml requirements/dev.txt
	$(PIP) install -q -c requirements/dev.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml requirements/dev.txt
	$(PIP) install -q -r requirements/dev.txt
	$(PIP) install -q --no-deps -e .
	@touch $@ $(VENV)/installed
