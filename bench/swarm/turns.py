"""What was measured of each turn, on the client's side."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One LLM call as its client saw it. Times are from sending the request; token counts are the reply's own usage."""

    session: str
    thread: str
    number: int
    first_call: bool
    started_s: float
    request_id: str = ""
    worker: str = ""
    predicted_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # None: the reply did not say
    completion_tokens: int = 0
    tool_calls: int = 0
    tries: int = 1
    error: str | None = None

    @property
    def cached_share(self) -> float | None:
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


def hit_rate(turns: list[TurnRecord]) -> float | None:
    """Cached prompt tokens over prompt tokens; None where no reply said."""
    told = [turn for turn in turns if turn.error is None and turn.cached_tokens is not None]
    prompt = sum(turn.prompt_tokens for turn in told)
    return sum(turn.cached_tokens or 0 for turn in told) / prompt if prompt else None


def percentile(values: list[float], share: float) -> float | None:
    """Nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def summary(engine: str, turns: list[TurnRecord]) -> dict[str, object]:
    """The last line of `loadback demo --once`."""
    ttfts = [turn.ttft_ms for turn in turns if turn.ttft_ms is not None and turn.error is None]
    points = {name: percentile(ttfts, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    return {
        "engine": engine,
        "turns": len(turns),
        "errors": sum(turn.error is not None for turn in turns),
        "first_call_hit": _rounded(hit_rate([turn for turn in turns if turn.first_call]), 4),
        "later_call_hit": _rounded(hit_rate([turn for turn in turns if not turn.first_call]), 4),
        "ttft_ms": {name: _rounded(value, 2) for name, value in points.items()},
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
