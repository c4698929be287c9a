"""Engine families by name; a family's module is imported when it is first built."""

from __future__ import annotations

import importlib
from typing import Any

from prefixsim.engines.contract import Engine, EngineInputs
from prefixsim.errors import ScenarioError, nearest

FAMILIES = {
    "vllm": "prefixsim.engines.vllm.engine",
    "sglang": "prefixsim.engines.sglang.engine",
}
"""A new engine: one folder with `engine.build(options, inputs)`, and one line here."""

NAMESPACE_RULES = {"vllm": "vllm", "sglang": "sglang"}
"""The rule of `workload.intern.namespaces` by which a family interns."""


def family_of(kind: str) -> str:
    """ "vllm" of "vllm@0.33". Raises ScenarioError for a family that is not known."""
    family = kind.partition("@")[0]
    if family not in FAMILIES:
        raise ScenarioError(f"engine kind '{kind}' is not known{nearest(family, FAMILIES)}")
    return family


def build(options: Any, inputs: EngineInputs) -> Engine:
    """An engine of the family that `options.kind` names."""
    module = importlib.import_module(FAMILIES[family_of(options.kind)])
    return module.build(options, inputs)
