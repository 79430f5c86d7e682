"""What the comparison counts, of turns."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.placement.experiment import OURS, POLICIES, Outcome, Run
from bench.placement.routers import Predicted
from bench.placement.turn import Turn
from bench.validate.timed import quantile

LEARNED_TURNS = 200  # after so many predictions are held to account
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Times in ms and hits as shares of prompt tokens, of the turns without an error; raises ValueError when there is none."""
    served = [turn for turn in turns if not turn.error]
    return {
        "turns": len(turns),
        "errors": len(turns) - len(served),
        "ttft_ms": {name: round(quantile([turn.ttft_ms for turn in served], share), 1) for name, share in _SHARES.items()},
        "e2e_ms": {"p90": round(quantile([turn.e2e_ms for turn in served], 0.9), 1)},
        "hit": hit(served),
        "first_call_hit": hit([turn for turn in served if turn.first_call]),
        "later_call_hit": hit([turn for turn in served if not turn.first_call]),
        "cached_tokens_by_tier": by_tier(served),
    }


def hit(turns: Sequence[Turn]) -> float | None:
    """None of nothing."""
    prompt = sum(turn.prompt_tokens for turn in turns)
    return round(sum(turn.cached_tokens for turn in turns) / prompt, 4) if prompt else None


def by_tier(turns: Sequence[Turn]) -> dict[str, int]:
    found: dict[str, int] = {}
    for turn in turns:
        for tier, tokens in turn.cached_by_tier.items():
            found[tier] = found.get(tier, 0) + tokens
    return dict(sorted(found.items()))


def of_policy(outcome: Outcome, policy: str) -> list[Turn]:
    return [turn for run in outcome.runs if run.policy == policy for turn in run.turns]


def prediction(outcome: Outcome) -> dict[str, Any]:
    """How far this gateway's predicted TTFT was off: with steady engines, in order of placing, and in the runs by policy."""
    steady = outcome.steady.predicted
    runs = {name: [each for run in outcome.runs if run.policy == name for each in run.predicted] for name in OURS}
    return {
        "steady": {
            "turns": len(steady),
            f"error_p50_first_{LEARNED_TURNS}": error_p50(steady[:LEARNED_TURNS]),
            f"error_p50_after_{LEARNED_TURNS}": error_p50(steady[LEARNED_TURNS:]),
            "workers": outcome.steady.workers,
        },
        "runs": {name: error_p50(told) for name, told in runs.items()},
    }


def error_p50(told: Sequence[Predicted]) -> float | None:
    return round(median(each.error for each in told), 4) if told else None


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "experiment": "placement",
        "engine": "sglang",
        "seed": outcome.plan.seed,
        "policies": {policy: figures(of_policy(outcome, policy)) for policy in POLICIES},
        "ttft_prediction": prediction(outcome),
        "runs": [_run(run) for run in outcome.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    head = {"repeat": run.repeat, "policy": run.policy, "seconds": round(run.seconds, 1)}
    return head | figures(run.turns) | {"prediction_error_p50": error_p50(run.predicted)}
