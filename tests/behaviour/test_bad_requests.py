"""Bodies that no engine can serve: one client that sends them must not take the workers away from the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_engine import Script
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import Call, End

pytestmark = pytest.mark.slow

BAD: dict[str, Any] = {"stop": "such-bodies-break-every-engine"}
FAULTS = {"500": Script(status=500), "event": Script(error_after=0), "broken": Script(error_after=2)}
BAD_BODIES = 40


def poison(stage: Stage, fault: Script) -> None:
    for engine in stage.engines:
        engine.faults = {BAD["stop"].encode(): fault}


def states(stage: Stage) -> set[str]:
    return {worker.breaker.state(stage.gateway.clock()) for worker in stage.gateway.fleet.workers}


def failed(call: Call) -> bool:
    """An error that came in one piece with the events before it is found before any of them was passed on."""
    return call.end is End.BROKEN or call.status == 502


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("workers", [1, 3])
async def test_they_take_nobody_away(make_stage: StageMaker, kind: str, workers: int, fault: str) -> None:
    stage = await make_stage(kind, workers=workers, breaker={"open_s": 3600})
    poison(stage, FAULTS[fault])
    calls = [await stage.ask(stream=True, **BAD) for _ in range(BAD_BODIES)]
    assert all(failed(call) for call in calls)
    assert [(await stage.ask()).status for _ in range(10)] == [200] * 10
    await stage.settled()


async def test_few_of_them_open_no_breaker(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, retry={"budget_floor": 100})
    poison(stage, FAULTS["500"])
    for _ in range(8):
        assert (await stage.ask(**BAD)).status == 502
    assert states(stage) == {"closed"}
    assert stage.gateway.turns._metrics.request_faults == 8


async def test_without_a_second_opinion_they_take_nobody_away(make_stage: StageMaker, kind: str) -> None:
    """They have used up the retries as well."""
    stage = await make_stage(kind, retry={"budget_ratio": 0.0, "budget_floor": 0}, breaker={"open_s": 3600})
    poison(stage, FAULTS["500"])
    for _ in range(BAD_BODIES):
        assert (await stage.ask(**BAD)).status == 502
    assert [(await stage.ask()).status for _ in range(10)] == [200] * 10


async def test_others_are_served_meanwhile(stage: Stage) -> None:
    poison(stage, FAULTS["500"])
    calls = await asyncio.gather(*(stage.ask(**(BAD if number % 2 else {})) for number in range(2 * BAD_BODIES)))
    assert [call.status for call in calls] == [200, 502] * BAD_BODIES
    await stage.settled()


async def test_a_worker_that_fails_what_others_serve_rests_in_spite_of_them(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, workers=3, breaker={"open_s": 3600}, retry={"budget_floor": 1000})
    poison(stage, FAULTS["500"])
    stage.replying[0].script = FAULTS["500"]
    bad = stage.gateway.fleet.workers[0]
    for _ in range(100):
        assert (await stage.ask()).status == 200
        assert (await stage.ask(**BAD)).status == 502
        if not bad.takes_turns(stage.gateway.clock()):
            break
    assert bad.breaker.state(stage.gateway.clock()) == "open"
    before = len(stage.replying[0].calls)
    assert [(await stage.ask()).status for _ in range(10)] == [200] * 10
    assert len(stage.replying[0].calls) == before


async def test_a_pool_that_fails_everything_is_noticed_and_comes_back_at_once(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, breaker={"open_s": 3600})
    stage.script(stage.replying, FAULTS["500"])
    for _ in range(20 * len(stage.replying)):
        call = await stage.ask()
        assert (call.status, call.error["code"]) == (502, "engine_error")
    replying = [worker for worker in stage.gateway.fleet.workers if worker.role.value != "prefill"]
    assert {worker.breaker.state(stage.gateway.clock()) for worker in replying} == {"open"}
    stage.script(stage.replying, Script())
    assert (await stage.ask()).status == 200
    assert "closed" in {worker.breaker.state(stage.gateway.clock()) for worker in replying}
