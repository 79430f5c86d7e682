"""Step 9: what one finished turn teaches. Measured against predicted; rates, residency and the thread are corrected."""

from __future__ import annotations

import msgspec

from costmodel.lesson import Lesson, lesson
from engine_adapters.base import EngineInfo, ReplyFacts
from router.body.strip import details
from router.dialects.dialect import Dialect, split_blocks
from router.fleet.rates import LegTerm
from router.threads.store import ThreadStore
from router.turn.attempt import Attempt
from router.turn.record import Outcome, TurnRecord
from router.turn.turn import Turn

_MIN_DECODE_TOKENS = 8  # fewer say little about the time between tokens
_SLACK_TOKENS = 256  # prompts are estimated and engines cache whole pages
_SLACK_SHARE = 0.1
_MOST_TOKENS = 1 << 24  # beyond any model's context; where the worker does not tell what it can hold


def read_facts(turn: Turn, attempt: Attempt) -> ReplyFacts | None:
    """The usage of a whole reply or of a stream; None when the engine sent none."""
    usage, adapter = attempt.usage(), turn.pool.adapter
    if usage is None:
        return None
    facts = adapter.facts(usage, attempt.details())
    own_usage, own_details = _usage_in(attempt.prefill_reply, turn.dialect)
    if own_usage is None or b"cache" not in own_usage:
        return facts  # an Anthropic usage leaves the field out when it has nothing to say
    own = adapter.facts(own_usage, own_details)
    return msgspec.structs.replace(facts, cached_tokens=own.cached_tokens, cached_by_tier=own.cached_by_tier)


def _usage_in(prefill_reply: bytes, dialect: Dialect) -> tuple[bytes | None, bytes | None]:
    """Usage and cache details of a prefill leg's reply, whole or streamed.

    Of a pair the decode reply tells the larger of both legs' cached tokens (SGLang 0.5.23), which says nothing of prefill.
    """
    if not dialect.may_hold_usage(prefill_reply):
        return None, None
    if prefill_reply.startswith(b"{"):
        return dialect.usage(prefill_reply), details(prefill_reply)
    usage = cached = None
    for event in split_blocks(prefill_reply):
        found = dialect.usage(event)
        usage = usage if found is None else dialect.merge_usage(usage, found)
        cached = details(event) or cached
    return usage, cached


def record_of(turn: Turn, outcome: Outcome, status: int, now_ms: float) -> TurnRecord:
    attempt = turn.attempt
    facts = read_facts(turn, attempt) if attempt else None
    return TurnRecord(
        turn.request_id,
        turn.sighting.thread,
        turn.sighting.kind.value,
        turn.sighting.first_call,
        turn.scanned.model,
        turn.request.path,
        outcome,
        status,
        turn.tries,
        turn.arrived_at_s,
        now_ms - turn.arrived_ms,
        _since_dispatch(attempt),
        attempt.dispatched_ms - turn.arrived_ms if attempt else None,
        attempt.placement.decision if attempt else None,
        facts,
        attempt.closed_tool_calls() if attempt else (),
        attempt.finish_reason() if attempt else None,
    )


def learn(turn: Turn, record: TurnRecord, threads: ThreadStore, now_ms: float) -> None:
    """Only a served turn teaches: a failed one says nothing about time or residency."""
    attempt, facts = turn.attempt, record.facts
    if record.outcome is not Outcome.SERVED or attempt is None:
        return
    for worker in {attempt.placement.prefill, attempt.placement.decode}:
        worker.rates.observe_served()
    if facts is not None and not believable(facts, attempt.placement.prefill.info):
        facts = None
    threads.finished(turn.sighting, facts or ReplyFacts(), now_ms)
    if facts is not None and facts.prompt_tokens:
        _correct_residency(turn, attempt, facts)
        _observe_times(turn, attempt, facts, now_ms)


def believable(facts: ReplyFacts, info: EngineInfo | None) -> bool:
    """Whether a prefill worker can have held the prompt that its reply counts, and whether anybody can have made so long a
    completion (which may be of several choices, on another worker): a few that say too much would spoil a curve for long."""
    most = info.kv_tokens_capacity if info is not None and info.kv_tokens_capacity else _MOST_TOKENS
    return facts.prompt_tokens <= most and facts.completion_tokens <= _MOST_TOKENS


def _since_dispatch(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.first_event_ms is None:
        return None
    return attempt.first_event_ms - attempt.dispatched_ms


def _correct_residency(turn: Turn, attempt: Attempt, facts: ReplyFacts) -> None:
    """Fewer tokens came from cache than the lineage promised: the engine has evicted this thread's prompt.

    The prompt is resident again now. But engines evict the least recently used first, so whatever was last served there before
    this thread's previous turn must be gone too.
    """
    if facts.cached_tokens is None:
        return
    promised = attempt.placement.decision.chosen.cut_tokens
    slack = max(_SLACK_TOKENS, promised * _SLACK_SHARE)
    if facts.cached_tokens + slack < promised and turn.sighting.placed_ms is not None:
        ledger = attempt.prefill_ledger
        ledger.evicted_before(turn.sighting.placed_ms)


def _observe_times(turn: Turn, attempt: Attempt, facts: ReplyFacts, now_ms: float) -> None:
    """A stream tells prefill and decode apart: before its first event, and after it."""
    ttft_ms = _since_dispatch(attempt)
    if ttft_ms is None or not turn.scanned.stream:
        return
    placement, cached = attempt.placement, facts.cached_tokens or 0
    prefill, decode = placement.prefill.rates, placement.decode.rates
    prefill.observe_ttft(placement.decision.chosen.terms.ttft_ms, ttft_ms)
    prefill.observe_reuse(facts.prompt_tokens, cached)
    _judge(turn, attempt, ttft_ms)
    told = _lesson(turn, attempt, facts, ttft_ms, now_ms)
    if told.restore is not None:
        placement.prefill.links.observe(told.restore.tier, told.restore.predicted_ms, told.restore.actual_ms)
    elif told.prefill_ms is not None:
        prefill.observe_prefill(facts.prompt_tokens - cached, told.prefill_ms, cached, now_ms)
    else:
        prefill.observe_wait(told)
    if facts.completion_tokens >= _MIN_DECODE_TOKENS:
        decoding_ms = now_ms - attempt.dispatched_ms - ttft_ms
        batch = (attempt.decode_ledger.batch_ms(now_ms) - attempt.first_batch_ms) / max(decoding_ms, 1e-3)
        decode.observe_decode(batch, decoding_ms / (facts.completion_tokens - 1), decoding_ms, now_ms)
        predicted_ms = placement.decision.chosen.terms.decode_ms / max(1, turn.sighting.expected_output_tokens)
        decode.legs[LegTerm.DECODE].observe(predicted_ms * facts.completion_tokens, decoding_ms)


def _lesson(turn: Turn, attempt: Attempt, facts: ReplyFacts, ttft_ms: float, now_ms: float) -> Lesson:
    worker, chosen, pool = attempt.placement.prefill, attempt.placement.decision.chosen, turn.pool
    legs = None
    if facts.cached_by_tier:
        legs = worker.links.legs(facts.cached_by_tier, chosen.hit_tier, pool.config.hardware.kv_bytes_per_token)
    return lesson(
        chosen.terms,
        ttft_ms,
        worker.rates.prefill(now_ms),
        facts.prompt_tokens,
        facts.cached_tokens or 0,
        legs,
        settled=worker.rates.settled,
        overlap_rho=pool.policy_config.overlap_rho,
    )


def _judge(turn: Turn, attempt: Attempt, ttft_ms: float) -> None:
    """How far each term that can be timed was off, and what the runner-up would have been worth."""
    placement, terms = attempt.placement, attempt.placement.decision.chosen.terms
    prefilled_ms = ttft_ms
    if placement.disaggregated and attempt.prefilled_ms is not None:
        prefilled_ms = min(ttft_ms, attempt.prefilled_ms - attempt.dispatched_ms)
        placement.decode.rates.legs[LegTerm.TRANSFER].observe(terms.transfer_ms, ttft_ms - prefilled_ms)
    predicted_ms = terms.ttft_ms - (terms.transfer_ms if placement.disaggregated else 0.0)
    placement.prefill.rates.legs[LegTerm.PREFILL].observe(predicted_ms, prefilled_ms)
    rival = placement.rival
    known = turn.pool.workers.get(rival.prefill.worker_id) if rival is not None else None
    if rival is not None and known is not None:
        placement.prefill.rates.regret.observe(ttft_ms, rival.terms.ttft_ms, known.rates.accuracy)
