"""Leaps end where single steps would have ended, whatever comes in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.simulate.leaping_engine import LeapingEngine
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.model.request import EngineRequest, Finished, Progress

PARAMS = EngineParams(role=EngineRole.DECODE, kv_tokens=24_000, max_running=6, decode_ms_per_context_token=1e-5)
Input = tuple[float, str, str, int, int]  # when, what, rid, prompt, output


def inputs(seed: int) -> list[Input]:
    """Requests that come, get their KV a little later, and are sometimes aborted."""
    rng, found = random.Random(seed), []
    for n in range(40):
        at_ms = rng.uniform(0, 4_000)
        found += [(at_ms, "submit", f"r{n}", rng.randrange(100, 6_000), rng.randrange(1, 120))]
        if rng.random() < 0.1:
            found += [(at_ms + rng.uniform(1, 900), "abort", f"r{n}", 0, 0)]
    return sorted(found)


def play(model: EngineModel, told: Sequence[Input]) -> tuple[list[Any], list[Any]]:
    """First tokens and ends, and the load as it stands at every input."""
    outcomes: list[Any] = []
    loads: list[Any] = []

    def advance(now_ms: float) -> None:
        for outcome in model.advance(now_ms):
            if isinstance(outcome, Finished) or (isinstance(outcome, Progress) and outcome.output_tokens == 1):
                outcomes.append((outcome.rid, type(outcome).__name__, outcome.at_ms, outcome.output_tokens))

    for at_ms, what, rid, prompt, output in told:
        while (due_ms := model.next_event_ms()) is not None and due_ms <= at_ms:
            advance(due_ms)
        if what == "submit":
            model.submit(EngineRequest(rid, prompt, output, output, ()), at_ms)
        else:
            model.abort(rid, at_ms)
        advance(at_ms)
        if isinstance(model, LeapingEngine):
            model.settle(at_ms)
        loads.append(msgspec.structs.asdict(model.load()) | msgspec.structs.asdict(model.load().counters))
    while (due_ms := model.next_event_ms()) is not None:
        advance(due_ms)
    return outcomes, loads


@pytest.mark.parametrize("seed", range(8))
def test_it_says_what_single_steps_say(seed: int) -> None:
    single, leaping = play(EngineModel(PARAMS), inputs(seed)), play(LeapingEngine(PARAMS), inputs(seed))
    assert len(single[0]) > 40
    for one, other in zip(single[0], leaping[0], strict=True):
        assert one[:2] == other[:2]
        assert other[2:] == pytest.approx(one[2:], abs=1e-6)
    for one, other in zip(single[1], leaping[1], strict=True):
        for key in ("running", "held_tokens", "generated", "decode_steps", "finished", "retractions"):
            assert one[key] == other[key], key
        for key in ("decode_busy_ms", "decode_product_sum", "decode_tokens_per_s"):
            assert other[key] == pytest.approx(one[key]), key


def test_it_is_asked_less_often() -> None:
    def turns(model: EngineModel) -> int:
        model.submit(EngineRequest("a", 100, 500, 500, ()), 0.0)
        count = 0
        while (due_ms := model.next_event_ms()) is not None:
            model.advance(due_ms)
            count += 1
        return count

    assert turns(EngineModel(PARAMS)) > 490
    assert turns(LeapingEngine(PARAMS)) < 5
