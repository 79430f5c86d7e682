"""What every policy owes, and what each does of its own."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from costmodel.explain import explain_sentence
from costmodel.params import CostParams, Objective, PolicyParams
from costmodel.policies import REGISTRY, NoCandidates
from costmodel.policies.base import Policy
from costmodel.policies.sticky import rendezvous_weight
from costmodel.score import score_pair
from costmodel.values import (
    Decision,
    Decode,
    DecodeRates,
    Fleet,
    Link,
    Load,
    Prefill,
    PrefillRates,
    Residency,
    Run,
    Scored,
    Terms,
    Tier,
    Turn,
    WorkerKey,
)

LINK = Link(1.0, 1e6)
TURN = Turn("thread-1", 10_000, 100)


def prefill(name: str, held: int = 0, queued: float = 0.0, tier: Tier = Tier.L1) -> Prefill:
    residency = Residency((Run(0, held, tier),)) if held else Residency()
    rates = PrefillRates(10.0, 0.02)
    return Prefill(WorkerKey(name), residency, Load(queued_uncached_tokens=queued), rates, {Tier.L2: LINK})


def decode(name: str, running: int = 0) -> Decode:
    return Decode(WorkerKey(name), Load(running_requests=running), DecodeRates(10.0, 1.0), LINK)


def pd_fleet(prefills: list[Prefill], decodes: list[Decode]) -> Fleet:
    return Fleet(tuple(prefills), tuple(decodes), 1000.0, disaggregated=True)


def unified_fleet(prefills: list[Prefill]) -> Fleet:
    decodes = [Decode(p.worker, p.load, DecodeRates(10.0, 1.0), LINK) for p in prefills]
    return Fleet(tuple(prefills), tuple(decodes), 1000.0, disaggregated=False)


PD = pd_fleet([prefill("p0", 8000), prefill("p1"), prefill("p2", 4000)], [decode("d0", 5), decode("d1")])
UNIFIED = unified_fleet([prefill("u0"), prefill("u1", 8000), prefill("u2")])


@pytest.fixture(params=sorted(REGISTRY))
def policy(request: pytest.FixtureRequest) -> Policy:
    return REGISTRY[request.param](PolicyParams())


def decide(policy: Policy, fleet: Fleet, turn: Turn = TURN, *, explain: bool = False, seed: int = 1) -> Decision:
    return policy.decide(turn, fleet, 0.0, random.Random(seed), explain)


@pytest.mark.parametrize("fleet", [PD, UNIFIED], ids=["pd", "unified"])
def test_every_policy_predicts_the_pair_it_chose(policy: Policy, fleet: Fleet) -> None:
    decision = decide(policy, fleet)
    chosen = decision.chosen
    prefills = {p.worker: p for p in fleet.prefills}
    decodes = {d.worker: d for d in fleet.decodes}
    params = PolicyParams().cost
    assert chosen == score_pair(TURN, prefills[chosen.prefill], decodes[chosen.decode], fleet, params)
    assert (chosen.prefill == chosen.decode) is not fleet.disaggregated
    assert chosen.terms.decode_ms > 0
    assert (decision.policy, decision.others, decision.reason) == (policy.name, (), "")


@pytest.mark.parametrize(("fleet", "others"), [(PD, 3), (UNIFIED, 2)], ids=["pd", "unified"])
def test_every_policy_explains_on_request(policy: Policy, fleet: Fleet, others: int) -> None:
    decision = decide(policy, fleet, explain=True)
    assert len(decision.others) == others
    assert decision.chosen not in decision.others
    assert all(
        other.prefill == decision.chosen.prefill or other.decode == decision.chosen.decode for other in decision.others
    ) or (not fleet.disaggregated)
    totals = [other.terms.total_ms for other in decision.others]
    assert totals == sorted(totals)
    assert decision.chosen.prefill.worker_id in decision.reason


def test_every_policy_says_what_is_missing(policy: Policy) -> None:
    with pytest.raises(NoCandidates, match="no prefill"):
        decide(policy, pd_fleet([], [decode("d0")]))
    with pytest.raises(NoCandidates, match="no decode"):
        decide(policy, pd_fleet([prefill("p0")], []))
    with pytest.raises(NoCandidates, match="no worker"):
        decide(policy, unified_fleet([]))


def test_a_unified_worker_is_paired_by_key_whatever_the_order(policy: Policy) -> None:
    shuffled = Fleet(UNIFIED.prefills, UNIFIED.decodes[::-1], 1000.0, disaggregated=False)
    chosen = decide(policy, shuffled).chosen
    assert chosen.prefill == chosen.decode
    lonely = Fleet(UNIFIED.prefills, (decode("elsewhere"),), 1000.0, disaggregated=False)
    with pytest.raises(ValueError, match="no decode candidate"):
        decide(policy, lonely)


def test_round_robin_takes_turns() -> None:
    policy = REGISTRY["round_robin"](PolicyParams())
    chosen = [decide(policy, PD).chosen for _ in range(6)]
    assert [pair.prefill.worker_id for pair in chosen] == ["p0", "p1", "p2"] * 2
    assert [pair.decode.worker_id for pair in chosen] == ["d0", "d1"] * 3


def test_longest_prefix_ignores_tier_and_queue() -> None:
    policy = REGISTRY["longest_prefix"](PolicyParams())
    fleet = pd_fleet([prefill("p0", 5000), prefill("p1", 5001, queued=1e6, tier=Tier.L2)], [decode("d0", 5), decode("d1")])
    chosen = decide(policy, fleet).chosen
    assert (chosen.prefill.worker_id, chosen.decode.worker_id) == ("p1", "d1")


def test_longest_prefix_breaks_ties_by_load_then_by_lot() -> None:
    policy = REGISTRY["longest_prefix"](PolicyParams())
    busy = pd_fleet([prefill("p0", queued=10), prefill("p1", queued=5)], [decode("d0")])
    assert decide(policy, busy).chosen.prefill.worker_id == "p1"
    even = pd_fleet([prefill("p0"), prefill("p1")], [decode("d0")])
    assert {decide(policy, even, seed=seed).chosen.prefill.worker_id for seed in range(20)} == {"p0", "p1"}


def test_sticky_keeps_its_workers_and_falls_back_to_the_hash() -> None:
    policy = REGISTRY["sticky"](PolicyParams())
    before = Turn("t", 100, prefill_before=WorkerKey("p2"), decode_before=WorkerKey("d1"))
    chosen = decide(policy, PD, before).chosen
    assert (chosen.prefill.worker_id, chosen.decode.worker_id) == ("p2", "d1")
    gone = Turn("t", 100, prefill_before=WorkerKey("p9"), decode_before=WorkerKey("p2"))
    assert decide(policy, PD, gone).chosen == decide(policy, PD, Turn("t", 100)).chosen


def test_rendezvous_moves_only_the_lost_workers_threads() -> None:
    policy = REGISTRY["sticky"](PolicyParams())
    whole = unified_fleet([prefill(f"u{i}") for i in range(5)])
    less = unified_fleet([prefill(f"u{i}") for i in range(5) if i != 2])
    placed = {f"t{n}": decide(policy, whole, Turn(f"t{n}", 100)).chosen.prefill.worker_id for n in range(500)}
    assert min(Counter(placed.values()).values()) > 60, "roughly even"
    for thread, worker in placed.items():
        moved = decide(policy, less, Turn(thread, 100)).chosen.prefill.worker_id
        assert moved == worker if worker != "u2" else moved != "u2"


def test_rendezvous_tells_ranks_apart_and_is_stable() -> None:
    assert rendezvous_weight("t", WorkerKey("w", 0)) != rendezvous_weight("t", WorkerKey("w", 1))
    assert rendezvous_weight("t", WorkerKey("w", 0)) == 13551182937682708698


def test_the_sentence_names_what_was_compared() -> None:
    decision = decide(REGISTRY["cost"](PolicyParams()), PD, explain=True)
    assert decision.reason == (
        "prefill p0 holds 8,000 of 10,000 tokens in L1: 50 ms against 130 ms on p2; decode d1: 1,111 ms against 1,611 ms on d0"
    )


def test_the_sentence_owns_up_to_a_dearer_choice() -> None:
    fleet = unified_fleet([prefill("u0"), prefill("u1", 8000)])
    decision = decide(REGISTRY["round_robin"](PolicyParams()), fleet, explain=True)
    assert decision.reason == "worker u0 holds none of 10,000 tokens: 1,310 ms although 1,150 ms on u1"


def test_the_sentence_counts_what_the_objective_counts() -> None:
    first = PolicyParams(CostParams(objective=Objective.TTFT))
    assert decide(REGISTRY["cost"](first), PD, explain=True).reason.endswith("; decode d0: 11 ms against 11 ms on d1")
    fleet = unified_fleet([prefill("u0"), prefill("u1", 8000)])
    assert decide(REGISTRY["cost"](first), fleet, explain=True).reason.endswith(": 50 ms against 210 ms on u0")


def test_the_sentence_for_a_fleet_of_one() -> None:
    key = WorkerKey("u0", 3)
    scored = Scored(key, key, 64, Tier.L3, Terms(compute_ms=7.0))
    sentence = explain_sentence(Decision(scored, (), "cost", ""), TURN, Objective.E2E)
    assert sentence == "worker u0/3 holds 64 of 10,000 tokens down to L3: 7 ms"
