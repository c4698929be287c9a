"""The arrays of a host tier (`layout`), and what it is built from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from prefixsim.engines.tiers import layout as lt
from prefixsim.hardware.host_link import host_link
from prefixsim.hardware.load import Hardware

PS_PER_S = 1_000_000_000_000
MAX_BLOCKS = (1 << 31) - 2


@dataclass(frozen=True, slots=True)
class HostTier:
    """Host memory below one replica's GPU pool.

    bytes_per_token: KV bytes of one token on one GPU (each GPU of the replica moves its own part over its own link).
    in_bytes_per_s, out_bytes_per_s: bandwidth of one GPU's link by direction. per_block_s: what each block or page costs
    beside its bytes. latency_s: of each transfer. gpus: in the replica. link: where the link's numbers are from, for the output.
    """

    bytes_per_token: int
    in_bytes_per_s: float
    out_bytes_per_s: float
    per_block_s: float = 0.0
    latency_s: float = 0.0
    gpus: int = 1
    link: dict[str, Any] = field(default_factory=dict, compare=False)

    def in_ps(self, tokens: int) -> int:
        """Picoseconds to load a block of so many tokens."""
        return round((self.bytes_per_token * tokens / self.in_bytes_per_s + self.per_block_s) * PS_PER_S)

    def out_ps(self, tokens: int) -> int:
        """Picoseconds to store a block of so many tokens."""
        return round((self.bytes_per_token * tokens / self.out_bytes_per_s + self.per_block_s) * PS_PER_S)

    @property
    def latency_ps(self) -> int:
        """Picoseconds of a transfer of nothing."""
        return round(self.latency_s * PS_PER_S)


def host_tier(hardware: Hardware) -> HostTier:
    """The host tier that a replica's hardware allows; engines take it where their options ask for one."""
    link = host_link(hardware)
    return HostTier(
        bytes_per_token=hardware.kv_bytes_per_token,
        in_bytes_per_s=link.bytes_per_s,
        out_bytes_per_s=link.bytes_per_s,
        per_block_s=link.per_block_s,
        latency_s=link.latency_s,
        gpus=hardware.spec.tensor_parallel_size,
        link=link.sources,
    )


def link_counters(link: npt.NDArray[np.int64], end_ns: int) -> dict[str, float]:
    """Share of the run (from 0 to `end_ns`) in which the link was busy, by direction. link: `layout`'s first scalars."""
    span = max(1, end_ns)
    return {
        "host link utilisation ratio (loads)": float(link[lt.T_IN_BUSY]) / span,
        "host link utilisation ratio (stores)": float(link[lt.T_OUT_BUSY]) / span,
    }


@dataclass
class TierArrays:
    """See `layout`."""

    tier: npt.NDArray[np.int64]
    host: npt.NDArray[np.int64]
    places: npt.NDArray[np.int32]
    tracker: npt.NDArray[np.int64]

    @classmethod
    def absent(cls) -> TierArrays:
        """No host tier: arrays of one row that nobody looks at."""
        return cls(
            np.zeros(lt.T_COLS, dtype=np.int64),
            np.zeros((1, lt.HOST_COLS), dtype=np.int64),
            np.zeros((2, 1), dtype=np.int32),
            np.zeros((1, lt.TRACKER_COLS), dtype=np.int64),
        )

    @classmethod
    def of_blocks(
        cls, tier: HostTier, capacity: int, block_tokens: int, n_chains: int, threshold: int, max_tracked: int
    ) -> TierArrays:
        """A pool of `capacity` blocks for a workload of `n_chains` distinct ones."""
        out = cls.absent()
        rows = max(1, min(capacity, n_chains))
        out.host = np.zeros((rows, lt.HOST_COLS), dtype=np.int64)
        out.places = np.zeros((2, max(1, n_chains)), dtype=np.int32)
        tracked = min(max_tracked, n_chains) if threshold >= 2 else 0
        out.tracker = np.zeros((1 + tracked, lt.TRACKER_COLS), dtype=np.int64)
        for column, value in (
            (lt.T_IN_PS, tier.in_ps(block_tokens)),
            (lt.T_OUT_PS, tier.out_ps(block_tokens)),
            (lt.T_LATENCY_PS, tier.latency_ps),
            (lt.T_CAPACITY, rows),
            (lt.T_THRESHOLD, threshold),
            (lt.T_TRACKER_MAX, tracked),
        ):
            out.tier[column] = value
        return out
