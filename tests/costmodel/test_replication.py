"""A prefix that many ask for gets a second holder once the first has a queue, and never for more than that queue."""

from __future__ import annotations

import msgspec
from fleets import PLAIN, TURN, decide, names, prefill, unified_fleet, with_guards

from costmodel.params import PolicyParams
from costmodel.policies import CostPolicy
from costmodel.policies.hot_prefixes import HotPrefixes

FORK = msgspec.structs.replace(TURN, prefix=7)
REPLICATING = with_guards(replication_weight=1.0)


def policy_after(uses: int, params=REPLICATING) -> CostPolicy:
    policy = CostPolicy(PolicyParams(params))
    for _ in range(uses):
        decide(unified_fleet([prefill("holder", held=9000)]), turn=FORK, policy=policy)
    return policy


def chosen(queued_ms: float, uses: int, params=REPLICATING) -> str:
    """9,000 of 10,000 tokens held: 30 ms of compute at the holder, 210 ms elsewhere."""
    fleet = unified_fleet([prefill("holder", held=9000, queued_ms=queued_ms), prefill("other")])
    return names(decide(fleet, turn=FORK, policy=policy_after(uses, params)))[0]


def test_a_hot_prefix_is_copied_before_its_holders_queue_is_as_long_as_computing_it() -> None:
    assert chosen(150.0, uses=0) == "holder"
    assert chosen(150.0, uses=10) == "other"
    assert chosen(150.0, uses=10, params=PLAIN) == "holder", "with the guard off"
    assert chosen(190.0, uses=0) == "other", "it is cheaper there anyway"


def test_a_copy_counts_as_far_as_others_share_it() -> None:
    """130 ms at the holder against 210 less half the wait, and less ten elevenths of it."""
    assert chosen(100.0, uses=1) == "holder"
    assert chosen(100.0, uses=10) == "other"


def test_a_copy_costs_a_turn_at_most_what_it_would_wait() -> None:
    assert chosen(80.0, uses=1000) == "holder", "180 ms more than at the holder, for a wait of 80"
    assert chosen(0.0, uses=1000) == "holder"


def test_a_new_threads_common_prefix_has_the_discount_instead() -> None:
    new = msgspec.structs.replace(FORK, shared_tokens=9000)
    fleet = unified_fleet([prefill("holder", held=9000, queued_ms=150.0), prefill("other")])
    both = with_guards(replication_weight=1.0, common_prefix_discount=0.01)
    assert names(decide(fleet, turn=new, policy=policy_after(10, both)))[0] == "holder"
    assert names(decide(fleet, turn=new, policy=policy_after(10)))[0] == "other"


def test_without_a_prefix_nothing_is_hot() -> None:
    fleet = unified_fleet([prefill("holder", held=9000, queued_ms=150.0), prefill("other")])
    assert names(decide(fleet, turn=TURN, policy=policy_after(10)))[0] == "holder"


def test_uses_are_forgotten_with_time_and_in_bulk() -> None:
    hot = HotPrefixes()
    assert [hot.asked(1, 0.0) for _ in range(3)] == [0, 1, 2]
    assert hot.asked(1, 100_000.0) < 0.01
    for prefix in range(10_000):
        hot.asked(prefix, 100_000.0)
    assert len(hot._uses) <= 1024
