"""What became of one call, measured or predicted, and the marks that both are compared by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bench.simulate.workload import Call


class Timed(msgspec.Struct, frozen=True):
    """Times in ms from the replay's start; `cached_tokens` of the prompt were not computed."""

    session: str
    index: int  # of the call within its session
    call: Call
    sent_ms: float
    ttft_ms: float
    e2e_ms: float
    cached_tokens: int


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank. Raises ValueError of nothing."""
    if not values:
        raise ValueError("no call was measured")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
