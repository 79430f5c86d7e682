"""Turns that are held back go in order, and nobody is forgotten."""

from __future__ import annotations

from bench.simulate.experiments import Choice, exp1_experiments
from bench.simulate.prefill_gate import PrefillGate
from costmodel.values import WorkerKey

A, B = WorkerKey("a"), WorkerKey("b")


def test_so_many_at_each_engine_and_the_rest_in_order() -> None:
    gate, gone = PrefillGate(2), list[str]()
    for rid in ("1", "2", "3", "4"):
        gate.enter(rid, A, lambda rid=rid: gone.append(rid))  # type: ignore[misc]
    gate.enter("5", B, lambda: gone.append("5"))
    assert gone == ["1", "2", "5"]
    gate.left("2")
    gate.left("2")
    gate.left("unknown")
    assert gone == ["1", "2", "5", "3"]
    gate.enter("1", B, lambda: gone.append("1 again"))
    assert gone[-2:] == ["4", "1 again"]


def test_without_a_limit_everybody_goes() -> None:
    gate, gone = PrefillGate(0), list[str]()
    for rid in ("1", "2", "3"):
        gate.enter(rid, A, lambda rid=rid: gone.append(rid))  # type: ignore[misc]
    assert gone == ["1", "2", "3"]


def test_the_oracle_reads_l3_in_no_time() -> None:
    configs = exp1_experiments(Choice(), 1, ["C", "F", "H"])
    slow, free = configs["C"].cluster.pool_local, configs["F"].cluster.pool_local
    assert free.bytes_per_ms == 1e9 * slow.bytes_per_ms
    assert free.latency_ms < 1e-6
    assert [bool(configs[name].settings.prefetch) for name in "CFH"] == [True, False, True]
    assert [configs[name].settings.prefilling_limit for name in "CFH"] == [0, 0, 6]
