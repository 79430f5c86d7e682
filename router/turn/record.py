"""What is remembered of one finished turn: predicted against actual, for the admin API, the demo's table and the metrics."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

from costmodel.values import Decision, Terms, Tier
from engine_adapters.base import ReplyFacts


class Outcome(StrEnum):
    SERVED = "served"  # the whole reply went to the client
    REFUSED = "refused"  # answered with an error of ours or the engine's, before any reply byte
    ABORTED = "aborted"  # failed after the first reply byte, or cut by the end of the drain: the client's connection was reset
    LEFT = "left"  # the client went away


class TurnRecord(msgspec.Struct, frozen=True):
    request_id: str
    thread: str
    kind: str  # how the thread was recognised: new, continued, retry, fork, …
    first_call: bool
    model: str
    path: str
    outcome: Outcome
    status: int
    tries: int
    at_s: float  # wall clock of arrival
    total_ms: float  # arrival to last byte
    ttft_ms: float | None = None  # dispatch to first real event (for a reply without stream: to the whole reply)
    gateway_ms: float | None = None  # arrival to dispatch
    decision: Decision | None = None
    facts: ReplyFacts | None = None
    tool_calls: tuple[str, ...] = ()
    finish_reason: str | None = None

    @property
    def worker(self) -> str:
        return pair_name(self.decision) if self.decision else ""


def pair_name(decision: Decision) -> str:
    """`prefill>decode` as the response header shows it; a rank other than 0 as `name#rank`."""
    prefill, decode = decision.chosen.prefill, decision.chosen.decode
    left = prefill.worker_id if prefill.dp_rank == 0 else f"{prefill.worker_id}#{prefill.dp_rank}"
    if prefill == decode:
        return left
    right = decode.worker_id if decode.dp_rank == 0 else f"{decode.worker_id}#{decode.dp_rank}"
    return f"{left}>{right}"


def terms_json(terms: Terms) -> dict[str, float]:
    names = (*Terms.__struct_fields__, "ttft_ms", "total_ms")
    return {name: round(getattr(terms, name), 3) for name in names}


def record_json(record: TurnRecord) -> dict[str, object]:
    """One entry of `GET /admin/decisions`."""
    facts, decision = record.facts, record.decision
    return {
        "id": record.request_id,
        "thread": record.thread,
        "kind": record.kind,
        "first_call": record.first_call,
        "model": record.model,
        "path": record.path,
        "worker": record.worker,
        "policy": decision.policy if decision else None,
        "predicted": terms_json(decision.chosen.terms) if decision else None,
        "predicted_cached_tokens": decision.chosen.cut_tokens if decision else None,
        "actual": {
            "ttft_ms": _rounded(record.ttft_ms),
            "total_ms": _rounded(record.total_ms),
            "gateway_ms": _rounded(record.gateway_ms),
            "prompt_tokens": facts.prompt_tokens if facts else None,
            "cached_tokens": facts.cached_tokens if facts else None,
            "cached_by_tier": {tier.name: tokens for tier, tokens in (facts.cached_by_tier or {}).items()} if facts else None,
            "completion_tokens": facts.completion_tokens if facts else None,
        },
        "hit_tier": hit_tier(facts),
        "tool_calls": list(record.tool_calls),
        "finish_reason": record.finish_reason,
        "outcome": record.outcome,
        "status": record.status,
        "tries": record.tries,
        "at_s": record.at_s,
    }


def hit_tier(facts: ReplyFacts | None) -> str | None:
    """The farthest tier that served part of the prompt; "L1?" when the engine counts cached tokens but names no tier."""
    if facts is None or not facts.cached_tokens:
        return None
    tiers = [tier for tier, tokens in (facts.cached_by_tier or {}).items() if tokens]
    return Tier(max(tiers)).name if tiers else "L1?"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class RecordLog:
    """The last `size` records, oldest dropped."""

    def __init__(self, size: int) -> None:
        self._records: deque[TurnRecord] = deque(maxlen=size)

    def add(self, record: TurnRecord) -> None:
        self._records.append(record)

    def newest(self, limit: int) -> list[TurnRecord]:
        """Up to `limit` records, newest last."""
        return list(self._records)[-limit:] if limit > 0 else []
