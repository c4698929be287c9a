"""The link between a GPU and host memory: bandwidth, cost of a block, latency. Formula and sources: docs/tiers.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefixsim.hardware.load import Hardware

SUSTAINED_SHARE = 0.82
"""Of the datasheet's bandwidth, what pinned copies sustain in one direction: assumed (PCIe 4.0 x16 is known to reach about
26 of 32 GB/s, PCIe 5.0 x16 about 53 of 64)."""
PER_BLOCK_US = 5.0
"""Beside its bytes, for the many small copies that a block is cut into: assumed."""
LATENCY_US = 20.0
"""Of a transfer, from submission to its first byte and from its last to the event: assumed."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """One GPU's link, either direction: bytes/s, seconds a block, seconds a transfer. sources: where each is from."""

    bytes_per_s: float
    per_block_s: float
    latency_s: float
    sources: dict[str, Any]


def host_link(hardware: Hardware) -> HostLink:
    """The link of a replica's GPUs: the scenario's `hardware.host_link`, else the GPU profile and what is assumed here."""
    given, listed = hardware.spec.host_link, hardware.gpu.device.host_link_bandwidth_gb_per_s
    sources: dict[str, Any] = {}

    def pick(name: str, own: float | None, value: float, source: str) -> float:
        kind = "given" if own is not None else "assumed"
        chosen = value if own is None else own
        sources[name] = {"value": chosen, "kind": kind, "source": "scenario" if own is not None else source}
        return chosen

    share = 1.0 if listed.kind == "measured" else SUSTAINED_SHARE
    bandwidth = pick(
        "bandwidth_gb_per_s",
        given.bandwidth_gb_per_s,
        listed.value * share,
        f"{share:.0%} of {listed.value:g} GB/s ({listed.source})",
    )
    per_block = pick("per_block_us", given.per_block_us, PER_BLOCK_US, "no measurement")
    latency = pick("latency_us", given.latency_us, LATENCY_US, "no measurement")
    return HostLink(bandwidth * 1e9, per_block * 1e-6, latency * 1e-6, sources)
