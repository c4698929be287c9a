"""prefixsim: a discrete-event simulator of LLM prefix caching on modelled GPUs.

>>> import prefixsim as ps
>>> done = ps.run("quickstart", set={"workload.requests": 50}, engines=["vllm"])
>>> done.engines["vllm"].hit_rate <= done.ceiling["16"]
True

Names below are loaded on first use, so that importing the package (and `prefixsim --help`) stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from prefixsim.api import EngineResult, Run, Scenario, SweepPoint, ceilings, curve, load_scenario, run, sweep
    from prefixsim.errors import PrefixsimError

__all__ = [
    "EngineResult",
    "PrefixsimError",
    "Run",
    "Scenario",
    "SweepPoint",
    "__version__",
    "ceilings",
    "curve",
    "load_scenario",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module("prefixsim.api"), name)
    raise AttributeError(f"module 'prefixsim' has no attribute {name!r}")
