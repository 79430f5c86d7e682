"""What an operator decides about one node's store. Defaults stand here alone."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvtier.policies.admission import AdmissionPolicy, AdmitAll
from kvtier.policies.eviction import EvictionPolicy, Lru
from kvtier.settings.ranges import BlockSize, Count, Ms, PauseMs, Share, Size

MIB = 1 << 20


class DemoteWhen(StrEnum):
    COMMIT = "commit"  # as soon as stored: survives the agent's death, costs a write for every page
    EVICTION = "eviction"  # only what leaves DRAM


class DramSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The L3 share of a node."""

    bytes: Size
    slab_bytes: BlockSize = 16 * MIB
    high_watermark: float = 0.95  # share of the pool in use above which pages leave ...
    low_watermark: float = 0.9  # ... down to here
    pending_ttl_ms: PauseMs = 30_000  # a put that was begun and not committed
    quarantine_ms: Ms = 300_000  # bytes of an expired put whose writer may still write
    max_lease_ms: PauseMs = 30_000
    retry_after_ms: Ms = 10
    max_pinned_share: float = 0.3
    max_pin_ms: Ms = 3_600_000
    heat_half_life_ms: PauseMs = 600_000
    eviction: EvictionPolicy = Lru()

    def __post_init__(self) -> None:
        if not 0 < self.low_watermark <= self.high_watermark <= 1:
            raise ValueError("watermarks must satisfy 0 < low_watermark <= high_watermark <= 1")
        if not 0 <= self.max_pinned_share <= self.low_watermark:
            raise ValueError("max_pinned_share must lie between 0 and low_watermark: pinned pages cannot make room")


class SsdSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The L4 share of a node."""

    bytes: Size
    segment_bytes: Size = 256 * MIB
    demote: DemoteWhen = DemoteWhen.COMMIT
    admission: AdmissionPolicy = AdmitAll()
    max_queued_pages: Count = 65_536  # waiting to be written; more are not written at all
    batch_bytes: Size = 4 * MIB
    max_writing_bytes: Size = 16 * MIB
    max_reading_bytes: Size = 64 * MIB
    max_wanted_pages: Count = 16_384  # waiting to be read
    full_backoff_ms: Ms = 10_000  # no writes after the device said it is full
    max_kept_share: Share = 0.5  # of a reclaimed segment that is moved rather than forgotten

    def __post_init__(self) -> None:
        if self.bytes < 3 * self.segment_bytes:
            raise ValueError(
                "bytes must hold at least 3 segments of segment_bytes, one written, one reclaimed, one kept: "
                f"{3 * self.segment_bytes} bytes, not {self.bytes}"
            )
