"""Regret in hindsight: copies change nothing in the run they are made in, and tell the truth about the other choices."""

from __future__ import annotations

import random

import msgspec
import pytest

from bench.simulate.cluster import Cluster, Engines, parse_topology
from bench.simulate.figures import Price, figures
from bench.simulate.generated import programbench
from bench.simulate.hindsight import Hindsight, HindsightFailed
from bench.simulate.outcome import Outcome
from bench.simulate.settings import Settings
from bench.simulate.simulation import Simulation
from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload
from costmodel.params import PolicyParams
from costmodel.policies import REGISTRY
from costmodel.roofline import Deployment
from costmodel.values import Scored, Terms, WorkerKey
from router.config.data_sheets import load_accelerator, load_model

SETTINGS = Settings(horizon_s=40, concurrency=10, ramp_s=10)


def simulate(workload: Workload, policy: str = "cost", **changes: object) -> Outcome:
    deployment = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.6)
    cluster = Cluster(parse_topology("2P1D"), load_accelerator("h200"), load_model("kimi-k2"), deployment, Engines())
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return Simulation(workload, cluster, REGISTRY[policy](PolicyParams()), settings, seed=3).run()


def sessions() -> Workload:
    return programbench(14, random.Random(5), context_tokens=100_000)


def test_trying_the_others_changes_nothing() -> None:
    alone, tried = simulate(sessions()), simulate(sessions(), hindsight_share=0.2)
    assert (alone.served, alone.decisions) == (tried.served, tried.decisions)
    assert not alone.regrets
    assert 1 < len(tried.regrets) < len(tried.served)
    assert all(regret.ttft_ms >= 0 and regret.e2e_ms >= 0 for regret in tried.regrets)


def test_regret_is_what_a_turn_alone_would_have_saved() -> None:
    """Round robin sends a thread's second turn away from its cache: the other worker would have had all of it."""
    first, second = Call(64_000, 2, (1, 1000)), Call(65_024, 2, (1, 1016), 1_000.0)
    workload = Workload("pair", 64, (SessionPlan("a", (ThreadPlan((first, second)),)),))
    outcome = simulate(workload, "round_robin", hindsight_share=1.0)
    one, two = outcome.served
    assert one.prefill != two.prefill
    assert outcome.regrets[0].e2e_ms < 1e-6, "two empty workers are one as good as the other"
    assert 0.9 * one.ttft_ms < outcome.regrets[1].ttft_ms < two.ttft_ms
    assert not simulate(workload, "sticky", hindsight_share=1.0).regrets[1].e2e_ms


def test_the_same_turns_are_sampled_whatever_the_policy() -> None:
    names = [f"thread{n} 0" for n in range(1000)]
    sampled = [name for name in names if Hindsight(0.1, 1).wanted(name)]
    assert 60 < len(sampled) < 140
    assert sampled != [name for name in names if Hindsight(0.1, 2).wanted(name)]


def test_a_copy_that_dies_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    hindsight = Hindsight(1.0, 1)
    own = Scored(WorkerKey("p0"), WorkerKey("d0"), 0, None, Terms())
    other = msgspec.structs.replace(own, prefill=WorkerKey("p1"))

    def decide() -> None:
        with hindsight.around():
            if hindsight.choose("1", own, [other]) is other:
                raise RuntimeError("in the copy")

    with pytest.raises(HindsightFailed, match="p1>d0"):
        decide()
    assert "in the copy" in capfd.readouterr().err


def test_figures_tell_it() -> None:
    outcome = simulate(sessions(), hindsight_share=0.2)
    told = figures(outcome, 0.0, Price(1.0))["regret_s"]
    assert told["turns"] == len(outcome.regrets)
    assert told["e2e"]["mean"] == pytest.approx(sum(regret.e2e_ms for regret in outcome.regrets) / told["turns"] / 1000)
    assert 0 <= told["best_chosen"] <= 1
    assert figures(simulate(sessions()), 0.0, Price(1.0))["regret_s"] is None
