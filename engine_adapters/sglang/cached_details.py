"""SGLang's `sglext`: how many cached prompt tokens came from which tier. Pure.

Sent only on request (`return_cached_tokens_details`) and absent when nothing was cached. `storage` is whatever backend HiCache
has behind host memory; it counts as L3, also where that backend is a directory.
"""

from __future__ import annotations

import msgspec

from costmodel.values import Tier
from engine_adapters.counts import count


class _CachedTokens(msgspec.Struct, frozen=True):
    device: int = 0
    host: int = 0
    storage: int | None = None


class _SglExt(msgspec.Struct, frozen=True):
    cached_tokens_details: _CachedTokens | None = None


_DECODER = msgspec.json.Decoder(_SglExt)


def cached_by_tier(raw: bytes) -> dict[Tier, int] | None:
    """Cached prompt tokens per tier from one raw `sglext` object; None when it does not tell."""
    try:
        details = _DECODER.decode(raw).cached_tokens_details
    except (msgspec.MsgspecError, RecursionError):
        return None
    if details is None:
        return None
    counts = {Tier.L1: details.device, Tier.L2: details.host, Tier.L3: details.storage or 0}
    return {tier: tokens for tier, told in counts.items() if (tokens := count(told))}
