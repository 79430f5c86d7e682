"""The fitted engine in virtual time: what a call takes, who waits for whom, and that a fit finds the rates behind times."""

from __future__ import annotations

import msgspec
import pytest

from bench.simulate.workload import Call, SessionPlan, ThreadPlan
from bench.validate.fit import fit, off, session_loss
from bench.validate.probes import Grid, batches_of
from bench.validate.timed import Timed
from bench.validate.virtual import Fitted, VirtualReplay
from engine_adapters.emulator.model.params import EngineParams

TRUTH = Fitted(
    EngineParams(
        prefill_base_ms=10.0, prefill_ms_per_token=0.02, prefill_ms_per_token2=0.0, prefill_ms_per_end2=1e-5,
        decode_base_ms=4.0, decode_ms_per_running=1.0, decode_ms_per_context_token=1e-3, chunk_tokens=2048,
    ),
    wire_ms=5.0,
    wire_ms_per_token=0.001,
)  # fmt: skip


def session(name: str, *calls: Call) -> SessionPlan:
    return SessionPlan(name, (ThreadPlan(calls),))


def unsent(calls: list[list[Call]]) -> list[Timed]:
    """Far apart, as probes are sent."""
    return [
        Timed(f"probe{number}", index, call, number * 1e6, 1.0, 1.0, 0)
        for number, batch in enumerate(calls)
        for index, call in enumerate(batch)
    ]


def test_a_lone_call_takes_wire_prefill_and_steps() -> None:
    (timed,) = VirtualReplay(TRUTH).closed_loop(iter([session("a", Call(1000, 3, (1, 62)))]), 1, 0)
    assert timed.ttft_ms == pytest.approx(5 + 1.0 + 10 + 20 + 10)
    assert timed.e2e_ms - timed.ttft_ms == pytest.approx(2 * (4 + 1) + 1.000 + 1.001)
    assert timed.cached_tokens == 0


def test_a_cached_prompt_is_attended_to_all_the_same() -> None:
    plan = session("a", Call(1008, 1, (1, 63)), Call(1024, 1, (1, 64)))
    first, second = VirtualReplay(TRUTH).closed_loop(iter([plan]), 1, 0)
    assert (first.cached_tokens, second.cached_tokens) == (0, 1008)
    assert second.ttft_ms == pytest.approx(5 + 1.024 + 10 + 16 * 0.02 + 1024**2 * 1e-5)


def test_a_call_is_not_sent_before_the_reply_to_the_last_one_and_its_gap() -> None:
    plan = session("a", Call(160, 4, (1, 10)), Call(320, 1, (1, 20), gap_ms=50.0))
    first, second = VirtualReplay(TRUTH).closed_loop(iter([plan]), 1, 0)
    assert second.sent_ms == pytest.approx(first.e2e_ms + 50)


def test_calls_sent_at_once_wait_for_each_other() -> None:
    calls = [Timed(name, 0, Call(1600, 1, (start, 100)), 0.0, 1.0, 1.0, 0) for name, start in (("a", 1), ("b", 1000))]
    alone = VirtualReplay(TRUTH).as_sent(calls[:1])[0].ttft_ms
    assert max(timed.ttft_ms for timed in VirtualReplay(TRUTH).as_sent(calls)) > 1.2 * alone


@pytest.mark.slow
def test_a_fit_finds_the_rates_from_times_alone() -> None:
    probes = VirtualReplay(TRUTH).as_sent(unsent(batches_of(Grid(repeats=1))))
    plans = [session(f"s{number}", *(Call(700 + 160 * turn, 6, (number * 1000, 40 + 10 * turn)) for turn in range(4)))
             for number in range(4)]  # fmt: skip
    measured = VirtualReplay(TRUTH).closed_loop(iter(plans), 2, 100)
    far = msgspec.structs.replace(
        TRUTH.engine, prefill_base_ms=4.0, prefill_ms_per_token=0.05, prefill_ms_per_end2=4e-6, decode_base_ms=9.0
    )
    start = msgspec.structs.replace(TRUTH, engine=far)
    fitted = fit(start, probes, measured)
    predicted = VirtualReplay(fitted).as_sent(measured)
    assert session_loss(fitted, measured) < session_loss(start, measured) / 4
    assert off(predicted, measured) < 0.1


def test_probes_hit_what_they_are_meant_to_and_nothing_else() -> None:
    grid = Grid(cached=(0, 1024), new=(16, 64), batches=(2,), contexts=(512,), repeats=2)
    timed = VirtualReplay(TRUTH).as_sent(unsent(batches_of(grid)))
    assert [each.cached_tokens for each in timed] == [0, 0, 0, 1024, 1024] * 2 + [0] * 4
