"""vLLM's KV events: its names for the tiers and its bytes hashes, over the wire that it shares with SGLang. Pure.

An integer id is unsigned on vLLM's wire; of a bytes hash the last eight bytes count (`maybe_convert_block_hash` in vLLM).
Groups of a hybrid model that keep only a window or a state do not say that a prefix is present, and their stores are left out;
their removals cannot be told apart on the wire and count, so that a hybrid model's residency is rather under- than overstated.
"""

from __future__ import annotations

from costmodel.values import Tier
from engine_adapters.base import EventBatch
from engine_adapters.kv_events import EventWire

TIERS: dict[str | None, Tier] = {
    None: Tier.L1,
    "GPU": Tier.L1,
    "CPU": Tier.L2,
    "CPU_PINNED": Tier.L2,
    "EXTERNAL": Tier.L3,
    "STORAGE": Tier.L4,
    "DISK": Tier.L4,
}
"""`STORAGE` is the offloading connector's second tier, a file system in vLLM's own implementations."""

PREFIX_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


def _last_eight_bytes(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big", signed=True)


_WIRE = EventWire(TIERS, _last_eight_bytes, indexed_kinds=PREFIX_KINDS)


def decode_events(payload: bytes) -> EventBatch:
    """One published payload to a batch. Raises `AdapterError` when it cannot be read."""
    return _WIRE.decode(payload)
