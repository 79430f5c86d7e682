"""Scaled sessions keep the recording's prefixes, and sets that are drawn do not overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulate.traces import weka
from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload
from bench.validate.scaled import PAGE_TOKENS, Scale, drawn, prompt_ids, scaled_sessions

WEKA = Path(__file__).parents[2] / "data" / "traces" / "weka_small.jsonl"


def recorded(*calls: Call) -> Workload:
    return Workload("made", 64, (SessionPlan("a", (ThreadPlan(calls),)),))


def shared(left: list[int], right: list[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), len(left))


def test_tokens_replies_and_gaps_shrink_by_one_number() -> None:
    calls = (Call(6400, 640, (1, 100)), Call(12_800, 64, (1, 200), gap_ms=32_000))
    (session,) = scaled_sessions(recorded(*calls), Scale(divisor=32))
    assert [(call.prompt_tokens, call.output_tokens, call.gap_ms) for call in session.threads[0].calls] == [
        (200, 20, 0.0),
        (400, 2, 1000.0),
    ]


def test_a_longer_prompt_begins_as_the_shorter_one_did() -> None:
    calls = (Call(6400, 1, (1, 100)), Call(12_800, 1, (1, 200)), Call(12_800, 1, (1, 64, 900, 136)))
    (session,) = scaled_sessions(recorded(*calls), Scale())
    first, second, edited = (prompt_ids(call, 7) for call in session.threads[0].calls)
    assert shared(first, second) == 200 // PAGE_TOKENS * PAGE_TOKENS
    assert shared(first, edited) == 64 * 64 // 32
    assert [len(ids) for ids in (first, second, edited)] == [200, 400, 400]


def test_another_salt_is_another_prompt() -> None:
    call = Call(320, 1, (1, 20))
    assert prompt_ids(call, 1) == prompt_ids(call, 1)
    assert shared(prompt_ids(call, 1), prompt_ids(call, 2)) < PAGE_TOKENS


def test_breaks_and_replies_are_cut_and_long_sessions_left_out() -> None:
    calls = (Call(640, 100_000, (1, 10)), Call(640, 1, (1, 10), gap_ms=9e9))
    (session,) = scaled_sessions(recorded(*calls), Scale(divisor=64, max_gap_s=64.0, max_output_tokens=50))
    assert [(call.output_tokens, call.gap_ms) for call in session.threads[0].calls] == [(50, 0.0), (1, 1000.0)]
    assert scaled_sessions(recorded(*calls), Scale(max_prompt_tokens=19)) == ()


def test_a_divisor_must_keep_pages_whole() -> None:
    with pytest.raises(ValueError, match="whole pages"):
        scaled_sessions(recorded(Call(64, 1, (1, 1))), Scale(divisor=30))


def test_sets_are_disjoint_and_the_same_for_a_seed() -> None:
    sessions = scaled_sessions(weka(WEKA, context_tokens=262_144), Scale(max_prompt_tokens=10_000))
    parts = drawn(sessions, 1, 3, seed=5)
    assert len({session.name for part in parts for session in part}) == 3
    assert parts == drawn(sessions, 1, 3, seed=5)
    with pytest.raises(ValueError, match="that fit"):
        drawn(sessions, len(sessions) + 1, 1, seed=5)
