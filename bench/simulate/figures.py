"""What a run's turns amount to, in the shape that `--json` promises. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.simulate.hindsight import Regret
from bench.simulate.outcome import Outcome
from bench.simulate.served import Served


class Price(msgspec.Struct, frozen=True):
    """What the simulated pool costs."""

    usd_per_hour: float


def figures(outcome: Outcome, warmup_ms: float, price: Price) -> dict[str, Any]:
    """Turns that arrived in the measured window; rates count what ended in it. Times in seconds, hits as shares of tokens."""
    counted = [turn for turn in outcome.served if warmup_ms <= turn.arrived_ms < outcome.until_ms]
    if not counted:
        return {"turns": 0, "unfinished": outcome.unfinished, "given_up": outcome.given_up}
    first = [turn for turn in counted if turn.first_call]
    later = [turn for turn in counted if not turn.first_call]
    tokens_per_s = _tokens_per_s(outcome, warmup_ms)
    return {
        "turns": len(counted),
        "unfinished": outcome.unfinished,
        "given_up": outcome.given_up,
        "rerouted": outcome.rerouted,
        "broken": outcome.broken,
        "ttft_s": _spread([turn.ttft_ms / 1000 for turn in counted]),
        "first_call_ttft_s": _mean([turn.ttft_ms / 1000 for turn in first]),
        "later_call_ttft_s": _mean([turn.ttft_ms / 1000 for turn in later]),
        "e2e_s": _spread([turn.e2e_ms / 1000 for turn in counted]),
        "tokens_per_s": tokens_per_s,
        "output_tokens_per_s": _tokens_per_s(outcome, warmup_ms, prompts=False),
        "hit": _hit(counted),
        "first_call_hit": _hit(first),
        "later_call_hit": _hit(later),
        "first_call_share": len(first) / len(counted),
        "tokens_by_tier": {
            "L1": sum(turn.device_tokens for turn in counted),
            "L2": sum(turn.host_tokens for turn in counted),
            "L3": sum(turn.pool_tokens for turn in counted),
            "L4": sum(turn.disk_tokens for turn in counted),
            "computed": sum(turn.prompt_tokens - turn.cached_tokens for turn in counted),
        },
        "moved_bytes": outcome.moved_bytes,
        "prefetch": outcome.prefetch,
        "usd_per_million_tokens": price.usd_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s else None,
        "busiest_prefill_share": _busiest(counted),
        "ttft_error_p50": _median_error(counted),
        "regret_s": _regrets(outcome.regrets),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest; `values` are sorted and not empty."""
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def _spread(values: list[float]) -> dict[str, float]:
    values.sort()
    return {"mean": sum(values) / len(values)} | {
        name: percentile(values, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _hit(turns: Sequence[Served]) -> float | None:
    prompts = sum(turn.prompt_tokens for turn in turns)
    return sum(turn.cached_tokens for turn in turns) / prompts if prompts else None


def _tokens_per_s(outcome: Outcome, warmup_ms: float, *, prompts: bool = True) -> float:
    tokens = sum(
        turn.output_tokens + (turn.prompt_tokens if prompts else 0)
        for turn in outcome.served
        if warmup_ms <= turn.ended_ms < outcome.until_ms
    )
    return tokens / (outcome.until_ms - warmup_ms) * 1000


def _busiest(turns: Sequence[Served]) -> float:
    """The share of computed tokens that the busiest prefill worker computed."""
    computed: dict[object, int] = {}
    for turn in turns:
        computed[turn.prefill] = computed.get(turn.prefill, 0) + turn.prompt_tokens - turn.cached_tokens
    return max(computed.values()) / max(1, sum(computed.values()))


def _median_error(turns: Sequence[Served]) -> float:
    """Of predicted against actual TTFT, relative."""
    errors = sorted(abs(turn.predicted_ttft_ms - turn.ttft_ms) / turn.ttft_ms for turn in turns if turn.ttft_ms > 0)
    return percentile(errors, 0.5) if errors else 0.0


def _regrets(regrets: Sequence[Regret]) -> dict[str, Any] | None:
    """Against the best choice in hindsight; None where none was tried. A turn within 1 ms of the best had the best."""
    if not regrets:
        return None
    return {
        "turns": len(regrets),
        "best_chosen": sum(regret.e2e_ms < 1.0 for regret in regrets) / len(regrets),
        "ttft": _spread([regret.ttft_ms / 1000 for regret in regrets]),
        "e2e": _spread([regret.e2e_ms / 1000 for regret in regrets]),
    }
