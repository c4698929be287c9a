"""TAB in bash: commands, options, and the names that a command knows; where it knows none, the shell's file names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixsim.cli import complete
from prefixsim.cli.app import app, register_commands


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("prefixsim rep", ["replay", "report"]),
        ("prefixsim run quick", ["quickstart"]),
        ("prefixsim check chat ra", ["rag"]),
        ("prefixsim explain lon", ["long-context"]),
        ("prefixsim hw show h100", ["h100-sxm-80g"]),
        ("prefixsim step-time --gpu h200 --model llama-3.1-8", ["llama-3.1-8b"]),
        ("prefixsim curve chat --gpu h1", ["h100-sxm-80g"]),
        ("prefixsim export run --format o", ["openmetrics"]),
        ("prefixsim export run --table g", ["gaps"]),
        ("prefixsim trace describe file --format moon", ["mooncake"]),
        ("prefixsim export run --for", ["--format"]),
        ("prefixsim run ./no-such-", []),
    ],
)
def test_offers(typed: str, offered: list[str]) -> None:
    register_commands()
    env = {"_PREFIXSIM_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = CliRunner().invoke(app, [], prog_name="prefixsim", env=env)
    assert done.output.split() == offered


def test_names_are_whole_lists_in_order() -> None:
    for names in (complete.scenarios, complete.gpus, complete.models, complete.profiles, complete.trace_formats):
        found = names("")
        assert len(found) > 3
        assert found == sorted(set(found))
    assert set(complete.gpus("")) < set(complete.profiles(""))


def test_a_working_folder_s_own_profiles_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hw_profiles" / "gpus").mkdir(parents=True)
    (tmp_path / "hw_profiles" / "gpus" / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "mine" in complete.gpus("")


def test_in_a_real_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "prefixsim"
    program.write_text(f"#!{sys.executable}\nfrom prefixsim.cli import main\nmain()\n")
    program.chmod(0o755)
    script = (
        'eval "$(prefixsim --show-completion bash)"; COMP_WORDS=(prefixsim run quick); COMP_CWORD=2; '
        '_prefixsim_completion prefixsim; echo "${COMPREPLY[@]}"; complete -p prefixsim'
    )
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, env=env, check=True, timeout=120)
    assert done.stdout.splitlines()[0] == "quickstart"
    assert "-o default" in done.stdout  # file names where nothing of ours fits
