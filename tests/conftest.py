"""Shared fixtures: where the data kept beside the checkout lies, and folders of one's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"

for number in (signal.SIGINT, signal.SIGHUP):  # commands under test inherit what a background job or nohup ignores
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

settings.register_profile(
    "default", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile(  # a mutant only needs to be noticed, not to be shrunk
    "mutation",
    parent=settings.get_profile("default"),
    database=None,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; skips the test, saying so, where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED
