"""Policies hear in the simulator what they hear in production: which prefix is shared, and what a worker has answered."""

from __future__ import annotations

import random

from bench.simulate.cluster import Cluster, Engines, parse_topology
from bench.simulate.generated import fork, programbench
from bench.simulate.settings import Settings
from bench.simulate.simulation import Simulation
from bench.simulate.workload import Workload
from costmodel.params import PolicyParams
from costmodel.policies.round_robin import RoundRobinPolicy
from costmodel.roofline import Deployment
from costmodel.values import Decision, Fleet, Turn
from router.config.data_sheets import load_accelerator, load_model


class Listening(RoundRobinPolicy):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(PolicyParams())
        self.heard: list[tuple[Turn, Fleet]] = []

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        self.heard.append((turn, fleet))
        return super().decide(turn, fleet, now_ms, rng, explain)


def heard(workload: Workload) -> list[tuple[Turn, Fleet]]:
    deployment = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.6, host_gb_per_accelerator=16)
    cluster = Cluster(parse_topology("2P2D"), load_accelerator("h200"), load_model("kimi-k2"), deployment, Engines())
    policy = Listening()
    settings = Settings(horizon_s=90, concurrency=6, ramp_s=20)
    Simulation(workload, cluster, policy, settings, seed=3).run()
    return policy.heard


def test_a_system_prompt_has_one_name_in_every_thread_that_begins_with_it() -> None:
    turns = [turn for turn, _ in heard(programbench(8, random.Random(5), context_tokens=100_000))]
    first = {turn.thread: turn for turn in reversed(turns)}
    opening, *others = sorted(first.values(), key=turns.index)
    assert (opening.prefix, opening.shared_tokens) == (None, 0)
    assert len({turn.prefix for turn in others}) == 1
    assert others[0].prefix is not None
    assert {turn.shared_tokens for turn in others} == {12_800}
    assert all(turn.prefix is None for turn in turns if turn is not first[turn.thread]), "a known thread has a past of its own"


def test_a_forks_children_name_their_parents_prefix_but_have_a_past() -> None:
    turns = [turn for turn, _ in heard(fork(2, random.Random(1), context_tokens=100_000, children=5))]
    children = [turn for turn in turns if turn.prefill_before is not None and turn.prefix is not None]
    assert len(children) >= 5
    assert {turn.shared_tokens for turn in children} == {0}
    assert len({turn.prefix for turn in children[:5]}) == 1


def test_workers_have_answered_what_they_have_answered() -> None:
    fleets = [fleet for _, fleet in heard(programbench(8, random.Random(5), context_tokens=100_000))]
    for side in ("prefills", "decodes"):
        answered = [sum(each.served_turns for each in getattr(fleet, side)) for fleet in fleets]
        assert answered[0] == 0
        assert answered == sorted(answered)
        assert len(fleets) - 7 < answered[-1] < len(fleets), "all but those that are under way, six at most"
