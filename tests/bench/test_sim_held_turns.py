"""Turns that the simulated gateway holds back: by production's own rule, none lost, fewer in an engine's queue."""

from __future__ import annotations

import random

import pytest

from bench.simulate.cluster import Cluster, Engines, parse_topology
from bench.simulate.experiments import Choice, exp1_experiments
from bench.simulate.generated import programbench
from bench.simulate.outcome import Outcome
from bench.simulate.settings import Settings
from bench.simulate.simulation import Simulation
from costmodel.params import PolicyParams
from costmodel.policies import REGISTRY
from costmodel.roofline import Deployment
from router.config.data_sheets import load_accelerator, load_model
from router.config.tree import AdmissionConfig


def crowded(hold_ms: float, policy: str = "cost") -> Outcome:
    """Forty long sessions that begin in one second at one slow prefill worker."""
    deployment = Deployment(8, "fp8", "fp4", 1.0, mfu=0.03, memory_fraction=0.6, host_gb_per_accelerator=16)
    cluster = Cluster(parse_topology("1P1D"), load_accelerator("h200"), load_model("kimi-k2"), deployment, Engines())
    settings = Settings(horizon_s=60, concurrency=40, ramp_s=1, hold_ms=hold_ms)
    workload = programbench(40, random.Random(5), context_tokens=100_000)
    return Simulation(workload, cluster, REGISTRY[policy](PolicyParams()), settings, seed=3).run()


def most_in_prefill(outcome: Outcome) -> int:
    """Turns between decision and first token at once."""
    steps = [(decided[0], 1) for decided in outcome.decisions] + [(turn.first_ms, -1) for turn in outcome.served]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


@pytest.mark.slow
def test_held_turns_are_all_served_and_queue_less_at_the_engine() -> None:
    at_once, held = crowded(0.0), crowded(2000.0)
    assert most_in_prefill(at_once) > 20
    assert most_in_prefill(held) < most_in_prefill(at_once) / 2
    for outcome in (at_once, held):
        assert (outcome.unfinished, outcome.given_up) == (0, 0)
        assert len(outcome.served) == len(outcome.decisions)
    assert crowded(2000.0) == held, "the same seed gives the same run"


@pytest.mark.slow
def test_held_turns_count_their_wait() -> None:
    """Time to first token is what the client saw, from its request on."""
    held = crowded(2000.0)
    decided = {(thread, at) for at, thread, *_ in held.decisions}
    assert any(turn.first_ms - turn.arrived_ms > 2000 for turn in held.served)
    assert len(decided) == len(held.decisions)


def test_the_oracle_reads_l3_in_no_time_and_h_holds_as_production_does() -> None:
    configs = exp1_experiments(Choice(), 1, ["C", "F", "H"])
    slow, free = configs["C"].cluster.pool_local, configs["F"].cluster.pool_local
    assert free.bytes_per_ms == 1e9 * slow.bytes_per_ms
    assert free.latency_ms < 1e-6
    assert [bool(configs[name].settings.prefetch) for name in "CFH"] == [True, False, True]
    assert [configs[name].settings.hold_ms for name in "CFH"] == [0, 0, AdmissionConfig().hold_ms]
    assumed = exp1_experiments(Choice(assumed={"hold_ms": 7.0}), 1, ["C"])
    assert assumed["C"].settings.hold_ms == 7.0
