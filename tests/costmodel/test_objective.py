"""What the policy makes small: the whole turn, the first token, or the whole turn as far as first tokens are in time."""

from __future__ import annotations

import random

import msgspec
import pytest
from fleets import LINK, PLAIN, TURN, decide, decode, names, pair_fleet, prefill, unified_fleet, with_guards
from hypothesis import given
from hypothesis import strategies as st

from costmodel.params import Objective, PolicyParams
from costmodel.policies import CostPolicy
from costmodel.score import score_pair
from costmodel.values import Link, Turn

TTFT = with_guards(objective=Objective.TTFT)
SLO = with_guards(objective=Objective.SLO)
SLOW_LINK = Link(500.0, 1e6)
# 20 ms a token at the busy one; 500 ms later at the far one, but then 10 ms a token
BUSY, FAR = decode("busy", running=10), decode("far", link=SLOW_LINK)


def due(deadline_ms: float | None) -> Turn:
    return msgspec.structs.replace(TURN, deadline_ms=deadline_ms)


def test_the_first_token_may_be_bought_with_a_slower_reply() -> None:
    fleet = pair_fleet([prefill("p")], [BUSY, FAR])
    assert names(decide(fleet)) == ("p", "far")
    assert names(decide(fleet, TTFT)) == ("p", "busy")


def test_a_unified_worker_counts_as_a_whole() -> None:
    fleet = unified_fleet([prefill("quick", held=5000), prefill("idle")], {"quick": 20})
    assert names(decide(fleet)) == ("idle", "idle")
    assert names(decide(fleet, TTFT)) == ("quick", "quick")


@pytest.mark.parametrize(("deadline_ms", "chosen"), [(None, "far"), (1000.0, "far"), (300.0, "busy"), (1.0, "busy")])
def test_within_its_deadline_a_turn_goes_where_it_ends_first(deadline_ms: float | None, chosen: str) -> None:
    """221 ms to the first token at the busy one, 720 at the far one."""
    assert names(decide(pair_fleet([prefill("p")], [BUSY, FAR]), SLO, due(deadline_ms))) == ("p", chosen)


def test_other_objectives_know_no_deadline() -> None:
    assert names(decide(pair_fleet([prefill("p")], [BUSY, FAR]), PLAIN, due(300.0))) == ("p", "far")


def test_with_all_too_late_the_earliest_first_token_wins() -> None:
    fleet = unified_fleet([prefill("quick", held=5000), prefill("idle")], {"quick": 20})
    assert names(decide(fleet, SLO, due(1.0))) == ("quick", "quick")
    assert names(decide(fleet, SLO, due(1e6))) == ("idle", "idle")


@given(
    queues=st.lists(st.floats(0, 2000), min_size=1, max_size=4),
    links=st.lists(st.floats(1, 2000), min_size=1, max_size=4),
    running=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    deadline_ms=st.floats(200, 4000),
)
def test_a_pair_in_time_is_found_whenever_there_is_one(
    queues: list[float], links: list[float], running: list[int], deadline_ms: float
) -> None:
    prefills = [prefill(f"p{i}", queued_ms=queue) for i, queue in enumerate(queues)]
    decodes = [
        decode(f"d{i}", running=running[i], link=Link(latency_ms, LINK.bytes_per_ms)) for i, latency_ms in enumerate(links)
    ]
    fleet, turn = pair_fleet(prefills, decodes), due(deadline_ms)
    chosen = CostPolicy(PolicyParams(SLO)).decide(turn, fleet, 0.0, random.Random(1)).chosen
    all_pairs = [score_pair(turn, p, d, fleet, SLO).terms for p in prefills for d in decodes]
    earliest = min(terms.ttft_ms for terms in all_pairs)
    if earliest <= deadline_ms:
        assert chosen.terms.ttft_ms <= deadline_ms + 1e-6
    else:
        assert chosen.terms.ttft_ms == pytest.approx(earliest)
