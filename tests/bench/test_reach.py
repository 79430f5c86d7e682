"""The pure parts of `bench reach`: prompts, arms of equal bytes, and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.reach.arms import Sizes, l2_only
from bench.reach.cli import as_json
from bench.reach.experiment import Hits, Migrated, Outcome, Travelled, from_storage, possible_hits
from bench.reach.pair import Completion, EngineFailed, _Leg
from bench.reach.prompts import prompts, sessions
from costmodel.values import Tier


def test_prompts_differ_and_repeat() -> None:
    made = prompts(5, 100, seed=3)
    assert made == prompts(5, 100, seed=3)
    assert len({tuple(prompt[:8]) for prompt in made}) == 5
    assert {len(prompt) for prompt in made} == {100}


def test_sessions_grow_from_a_common_beginning() -> None:
    made = sessions(3, 3, common=10, first=5, more=4, seed=1)
    for session in made:
        assert [len(turn) for turn in session.turns] == [15, 19, 23]
        assert all(later[: len(earlier)] == earlier for earlier, later in zip(session.turns, session.turns[1:], strict=False))
    assert len({tuple(session.turns[0][:10]) for session in made}) == 1
    assert len({tuple(session.turns[0]) for session in made}) == 3


def test_both_arms_have_the_same_bytes() -> None:
    sizes = Sizes(l1_tokens=100, l2_tokens=200, l3_tokens=600)
    assert 2 * sizes.private_l2_tokens == 2 * sizes.l2_tokens + sizes.l3_tokens
    flags = l2_only(sizes, Path("/m")).host_tier_flags
    assert flags == ("--hicache-ratio", "5")


def test_a_leg_says_what_it_saw() -> None:
    leg = _Leg("http://p")
    leg.take('data: {"choices": [{"text": ""}]}', 1.0)
    leg.take('data: {"choices": [{"text": "a"}]}', 2.0)
    leg.take('data: {"choices": [{"text": "b"}], "usage": {"prompt_tokens": 20, "completion_tokens": 2}}', 3.0)
    leg.take('data: {"choices": [], "sglext": {"cached_tokens_details": {"device": 0, "host": 4, "storage": 16}}}', 3.0)
    leg.take("data: [DONE]", 4.0)
    assert (leg.text, leg.first_ms, leg.facts.prompt_tokens) == ("ab", 2.0, 20)
    assert leg.facts.cached_by_tier == {Tier.L2: 4, Tier.L3: 16}
    with pytest.raises(EngineFailed, match="http://p"):
        leg.take('data: {"error": {"message": "gone"}}', 5.0)


def test_only_a_whole_prompt_counts_as_restored() -> None:
    assert from_storage(Completion("", 100, {Tier.L3: 96}, 0.0))
    assert not from_storage(Completion("", 100, {Tier.L3: 16, Tier.L2: 80}, 0.0))


def test_what_could_be_hit_at_best() -> None:
    made = sessions(3, 3, common=10, first=5, more=4, seed=1)
    assert possible_hits(made, 10) == Hits(20 / 45, 3 * (15 + 19) / (3 * (19 + 23)))


def test_the_json_has_the_agreed_shape() -> None:
    outcome = Outcome(Travelled(3, 0, 3, 3, 100, 20, 30), Migrated(0.1, 0.2, 50), Migrated(0.3, 0.9, 25), Hits(0.4, 0.95))
    shown = as_json(outcome)
    assert {"prompts", "text_mismatches", "restored_from_storage", "first_call_hit", "later_call_hit", "ttft_ms"} <= set(shown)
    assert shown["later_call_hit"] == {"l2_only": 0.2, "l2_l3": 0.9, "possible": 0.95}
