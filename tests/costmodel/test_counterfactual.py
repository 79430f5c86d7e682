"""An explained decision names the guards that decided, and what would have been chosen without each."""

from __future__ import annotations

import random

import msgspec
from fleets import PLAIN, TURN, prefill, unified_fleet, with_guards

from costmodel.counterfactual import explained_lots, name_guards
from costmodel.params import GUARDS, CostParams, PolicyParams
from costmodel.policies import CostPolicy
from costmodel.values import Decision, Fleet, Turn, WorkerKey

RETURNING = msgspec.structs.replace(TURN, prefill_before=WorkerKey("a"))
DEARER_BY_15_MS = unified_fleet([prefill("a", held=8000), prefill("b", held=8750)])


def explained(fleet: Fleet, params: CostParams, turn: Turn, policy: CostPolicy | None = None) -> Decision:
    policy = policy or CostPolicy(PolicyParams(params))
    before = policy.without("near_tie_ms", params.near_tie_ms)
    decision = policy.decide(turn, fleet, 0.0, explained_lots(), explain=True)
    return name_guards(before, decision, turn, fleet, 0.0)


def test_the_guard_that_kept_a_thread_is_named() -> None:
    decision = explained(DEARER_BY_15_MS, with_guards(switch_margin_ms=20.0), RETURNING)
    assert decision.chosen.prefill.worker_id == "a"
    assert decision.guards == ("switch_margin_ms",)
    assert decision.reason.endswith("; decided by switch_margin_ms (without it b)")


def test_the_plain_minimum_is_nobodys_doing() -> None:
    decision = explained(DEARER_BY_15_MS, CostParams(), TURN)
    assert (decision.chosen.prefill.worker_id, decision.guards) == ("b", ())
    assert decision.reason.endswith("; no guard changed it")


def test_asking_leaves_the_policy_as_it_was() -> None:
    params = with_guards(never_used_first=True, near_tie_ms=50.0)
    policy = CostPolicy(PolicyParams(params))
    fleet = unified_fleet([prefill("a"), prefill("b")])
    first = policy.decide(TURN, fleet, 0.0, random.Random(1)).chosen.prefill
    for guard, off in GUARDS.items():
        policy.without(guard, off).decide(TURN, fleet, 0.0, random.Random(1))
    assert policy.decide(TURN, fleet, 0.0, random.Random(1)).chosen.prefill != first
    assert PLAIN.near_tie_ms == 0
