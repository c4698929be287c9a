"""More tokens a second than any measured server sent: said, as the front end is not modelled."""

from __future__ import annotations

from prefixsim.hardware.load import load_hardware
from prefixsim.pipeline.summarise import FRONT_END_TOKENS_PER_S, front_end_notes
from prefixsim.scenario.hardware import HardwareSpec


def test_said_per_replica_and_only_where_time_is_modelled() -> None:
    gpu = load_hardware(HardwareSpec(gpu="h200", model="llama-3.1-8b", tensor_parallel_size=1))
    fast = 2.2 * FRONT_END_TOKENS_PER_S
    (said,) = front_end_notes(fast, [gpu, gpu])
    assert "a replica sends 9,900 tokens a second" in said
    assert front_end_notes(fast, [gpu, gpu, gpu]) == []
    assert front_end_notes(fast, [None]) == [], "steps have no seconds"
    assert front_end_notes(None, [gpu]) == []
