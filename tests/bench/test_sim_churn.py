"""Workers that are lost and join: no turn is lost with them, caches are, and nobody is sent where nobody is."""

from __future__ import annotations

import random

import msgspec
import pytest

from bench.simulate.churn import Change, parse_changes, require_known
from bench.simulate.cluster import Cluster, Engines, parse_topology
from bench.simulate.generated import programbench
from bench.simulate.outcome import Outcome
from bench.simulate.settings import Settings
from bench.simulate.simulation import Simulation
from costmodel.params import PolicyParams
from costmodel.policies import REGISTRY
from costmodel.roofline import Deployment
from costmodel.values import Role, WorkerKey
from kvtier.prefetch.events import Trigger
from router.config.data_sheets import load_accelerator, load_model

SETTINGS = Settings(horizon_s=60, concurrency=12, ramp_s=10)


def simulate(policy: str, changes: tuple[Change, ...], topology: str = "2P2D", **engines: object) -> Outcome:
    deployment = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.6, host_gb_per_accelerator=16)
    settings = msgspec.structs.replace(Engines(), **engines)
    cluster = Cluster(parse_topology(topology), load_accelerator("h200"), load_model("kimi-k2"), deployment, settings)
    workload = programbench(16, random.Random(5), context_tokens=100_000)
    run = msgspec.structs.replace(SETTINGS, churn=changes)
    return Simulation(workload, cluster, REGISTRY[policy](PolicyParams()), run, seed=3).run()


def changes(lose: str = "", join: str = "") -> tuple[Change, ...]:
    return parse_changes(lose, joins=False) + parse_changes(join, joins=True)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(REGISTRY))
def test_every_policy_lives_with_it(policy: str) -> None:
    outcome = simulate(policy, changes("p0@20,d1@25", "p5@35,d5@40"))
    assert (outcome.unfinished, outcome.given_up) == (0, 0)
    assert len(outcome.served) == len(outcome.decisions) - outcome.rerouted - outcome.broken
    for at_ms, _, prefill, decode in outcome.decisions:
        assert (prefill != WorkerKey("p0")) or at_ms <= 20_000
        assert (decode != WorkerKey("d1")) or at_ms <= 25_000


@pytest.mark.parametrize("topology", ["2P2D", "3U"])
def test_turns_of_a_lost_worker_are_served_elsewhere(topology: str) -> None:
    lost = WorkerKey("d0" if topology == "2P2D" else "u0")
    before = simulate("round_robin", (), topology)
    busy_ms = max(t.first_ms + (t.ended_ms - t.first_ms) / 2 for t in before.served[:20] if t.decode == lost)
    outcome = simulate("round_robin", changes(f"{lost.worker_id}@{busy_ms / 1000:.3f}"), topology)
    assert outcome.broken >= 1, "a stream that had begun broke, and its client called again"
    assert len(outcome.served) == len(outcome.decisions) - outcome.rerouted - outcome.broken
    again = [t for t in outcome.served if t.arrived_ms < busy_ms < t.first_ms]
    assert again
    assert all(t.decode != lost for t in again)


def test_what_has_not_begun_to_stream_is_sent_elsewhere_at_once() -> None:
    before = simulate("round_robin", ())
    turn = next(t for t in before.served if t.prefill == WorkerKey("p0"))
    middle_ms = (turn.arrived_ms + turn.first_ms) / 2
    outcome = simulate("round_robin", changes(f"p0@{middle_ms / 1000:.6f}"))
    assert outcome.rerouted >= 1
    again = next(t for t in outcome.served if t.arrived_ms == turn.arrived_ms)
    assert again.prefill == WorkerKey("p1")
    assert again.first_ms > turn.first_ms, "its time counts from when the client first asked"


def test_a_thread_whose_worker_was_lost_makes_a_first_call() -> None:
    outcome = simulate("sticky", changes("p0@30"))
    moved = [t for t in outcome.served if t.first_call and t.arrived_ms > 30_000 and t.prompt_tokens > 15_000]
    assert moved
    assert {t.prefill for t in moved} == {WorkerKey("p1")}


def test_a_joining_worker_is_used_and_begins_empty() -> None:
    outcome = simulate("least_load", changes("", "p7@20"))
    there = [t for t in outcome.served if t.prefill == WorkerKey("p7")]
    assert there
    assert min(there, key=lambda turn: turn.arrived_ms).cached_tokens == 0
    assert all(t.arrived_ms >= 20_000 for t in there)


def test_a_lost_node_takes_its_share_of_the_pool_along() -> None:
    outcome = simulate("round_robin", changes("p0@30", "p0@45"), pool_gb_per_accelerator=8.0)
    assert outcome.unfinished == 0
    assert [t for t in outcome.served if t.prefill == WorkerKey("p0") and t.arrived_ms > 45_000]


@pytest.mark.slow
def test_prefetch_lives_with_it() -> None:
    """Small caches, nodes that read their own pages alone, a policy that sends every turn elsewhere: all is to be fetched."""
    outcome = prefetched()
    assert (outcome.unfinished, outcome.given_up) == (0, 0)
    assert len(outcome.served) == len(outcome.decisions) - outcome.rerouted - outcome.broken
    ends = outcome.prefetch["decision"]["jobs"]
    assert ends["consumed"] > 5
    assert [turn for turn in outcome.served if turn.prefill == WorkerKey("p3") and turn.pool_tokens], "fetched for the newcomer"
    assert prefetched() == outcome, "the same seed gives the same run"


def prefetched() -> Outcome:
    deployment = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.55, host_gb_per_accelerator=8)
    engines = Engines(pool_gb_per_accelerator=24, decode_memory_fraction=0.8)
    cluster = Cluster(parse_topology("3P1D"), load_accelerator("h200"), load_model("kimi-k2"), deployment, engines)
    workload = programbench(48, random.Random(5), context_tokens=60_000)
    settings = Settings(
        horizon_s=90, concurrency=24, ramp_s=10, churn=changes("p0@45", "p3@60"), prefetch=frozenset(Trigger), own_node=1
    )
    return Simulation(workload, cluster, REGISTRY["round_robin"](PolicyParams()), settings, seed=3).run()


def test_changes_are_read_from_words() -> None:
    assert parse_changes("p1@600, d0@9.5", joins=False) == (
        Change(600.0, WorkerKey("p1"), Role.PREFILL, False),
        Change(9.5, WorkerKey("d0"), Role.DECODE, False),
    )
    assert parse_changes("", joins=True) == ()
    with pytest.raises(ValueError, match="p1@600"):
        parse_changes("worker1@5", joins=False)


def test_only_workers_that_are_there_can_be_lost() -> None:
    workers = parse_topology("2P2D").roles()
    require_known(workers, changes(lose="p1@10,p2@30", join="p2@20,p1@20"), 60)
    with pytest.raises(ValueError, match=r"p9 is lost, but is not there at 10 s; there are d0, d1, p0, p1"):
        require_known(workers, changes(lose="p9@10"), 60)
    with pytest.raises(ValueError, match="p2 is lost, but is not there"):
        require_known(workers, changes(lose="p2@10", join="p2@20"), 60)
    with pytest.raises(ValueError, match="d0 joins, but is there already"):
        require_known(workers, changes(join="d0@20"), 60)


def test_a_role_is_never_left_without_a_worker_nor_given_its_first() -> None:
    workers = parse_topology("2P1D").roles()
    require_known(workers, changes(lose="d0@20", join="d1@10"), 60)
    with pytest.raises(ValueError, match="no decode worker is left when d0 is lost at 20 s"):
        require_known(workers, changes(lose="d0@20", join="d1@30"), 60)
    with pytest.raises(ValueError, match="u0 joins at 5 s a pool that has no unified workers"):
        require_known(workers, changes(join="u0@5"), 60)


def test_a_change_that_no_call_would_see_is_refused() -> None:
    with pytest.raises(ValueError, match="p0@60 comes after the last call: give a longer horizon than 60 s"):
        require_known(parse_topology("2P1D").roles(), changes(lose="p0@60"), 60)
