"""SGLang's KV events: its names for the tiers and its bytes hashes, over the wire that it shares with vLLM. Pure.

Hash ids are the first eight bytes, big-endian and signed, of the page's SHA-256 digest (`hash_str_to_int64` in SGLang).
"""

from __future__ import annotations

from costmodel.values import Tier
from engine_adapters.base import EventBatch
from engine_adapters.kv_events import EventWire

TIERS: dict[str | None, Tier] = {
    None: Tier.L1,  # engines from before tiered events
    "GPU": Tier.L1,
    "CPU_PINNED": Tier.L2,
    "CPU": Tier.L2,
    "EXTERNAL": Tier.L3,
    "DISK": Tier.L4,
}


def _first_eight_bytes(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big", signed=True)


_WIRE = EventWire(TIERS, _first_eight_bytes)


def decode_events(payload: bytes) -> EventBatch:
    """One published payload to a batch. Raises `AdapterError` when it cannot be read."""
    return _WIRE.decode(payload)
