"""Engines that refuse, fail or vanish before the first byte: how often the turn is tried, and what its client is told."""

from __future__ import annotations

import pytest
from fake_engine import Script
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import Call, End

from router.clock import system_clock

pytestmark = pytest.mark.slow

BAD_REQUEST = Script(status=400)
SATURATED = Script(status=503, headers=(("retry-after", "7"),))
LIMITED = Script(status=429, headers=(("retry-after", "7"),))
FAILS = Script(status=500)
DROPS = Script(drop=True)


def tries(stage: Stage) -> list[int]:
    return [len(engine.calls) for engine in stage.replying]


def assert_openai_error(call: Call) -> None:
    assert set(call.error) == {"message", "type", "code", "param"}
    assert call.headers["content-type"] == "application/json"
    assert call.end is End.CLEAN


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bad_request_is_tried_once_and_keeps_its_status(stage: Stage, stream: bool) -> None:
    stage.script(stage.engines, BAD_REQUEST)
    call = await stage.ask(stream=stream)
    assert call.status == 400
    assert call.error["message"] == "scripted"
    assert call.error["type"] == "invalid_request_error"
    assert_openai_error(call)
    assert sum(tries(stage)) == 1
    await stage.settled()


@pytest.mark.parametrize("script", [LIMITED, SATURATED], ids=["429", "503"])
@pytest.mark.parametrize("stream", [True, False])
async def test_back_pressure_everywhere_says_when_to_come_back(stage: Stage, script: Script, stream: bool) -> None:
    stage.script(stage.replying, script)  # of two legs that refuse only the quicker one is heard
    call = await stage.ask(stream=stream)
    assert call.status == 503
    assert call.headers["retry-after"] == "7"
    assert call.error["type"] == "overloaded_error"
    assert "context" not in call.body.decode()  # clients would compact their history
    assert_openai_error(call)
    assert max(tries(stage)) == 1
    await stage.settled()


@pytest.mark.parametrize("script", [FAILS, DROPS], ids=["500", "drop"])
@pytest.mark.parametrize("stream", [True, False])
async def test_failures_everywhere_are_tried_once_a_worker(stage: Stage, script: Script, stream: bool) -> None:
    stage.script(stage.replying, script)
    call = await stage.ask(stream=stream)
    assert call.status == 502
    assert call.error["type"] == "server_error"
    assert_openai_error(call)
    assert tries(stage) == [1] * len(stage.replying)
    await stage.settled()


async def test_engines_that_never_answer(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, timeouts={"first_byte_s": 0.05})
    stage.script(stage.replying, Script(hang=True))
    call = await stage.ask()
    assert call.status == 504
    assert call.error["code"] == "engine_timeout"
    assert_openai_error(call)
    assert tries(stage) == [1] * len(stage.replying)
    await stage.settled()


@pytest.mark.parametrize("script", [BAD_REQUEST, LIMITED, SATURATED, FAILS, DROPS], ids=["400", "429", "503", "500", "drop"])
async def test_the_next_turn_is_served_when_they_have_recovered(stage: Stage, script: Script) -> None:
    stage.script(stage.engines, script)
    assert (await stage.ask()).status != 200
    stage.script(stage.engines, Script())
    call = await stage.ask()
    assert call.status == 200
    assert call.json["choices"][0]["message"]["content"] == "hello"


async def test_sixty_bad_requests_take_no_worker_out(stage: Stage) -> None:
    stage.script(stage.engines, BAD_REQUEST)
    assert {(await stage.ask()).status for _ in range(60)} == {400}
    stage.script(stage.engines, Script())
    assert (await stage.ask()).status == 200
    assert all(worker.takes_turns(stage.gateway.clock()) for worker in stage.gateway.fleet.workers)


@pytest.mark.parametrize("script", [LIMITED, SATURATED, FAILS, DROPS], ids=["429", "503", "500", "drop"])
@pytest.mark.parametrize("stream", [True, False])
async def test_one_bad_worker_of_the_pool_is_not_noticed(stage: Stage, script: Script, stream: bool) -> None:
    stage.script(stage.replying[:1], script)
    statuses = [(await stage.ask(stream=stream)).status for _ in range(40)]
    assert statuses == [200] * 40
    assert stage.replying[0].calls, "the bad worker was never tried"
    await stage.settled()


async def test_one_bad_prefill_worker_is_not_noticed(pd: Stage) -> None:
    pd.script(pd.prefill[:1], FAILS)
    assert [(await pd.ask()).status for _ in range(40)] == [200] * 40
    assert pd.prefill[0].calls, "the bad worker was never tried"
    await pd.settled()


async def test_a_worker_that_fails_often_rests(make_stage: StageMaker) -> None:
    """The breaker: after five failures a worker is left alone; one trial after `open_s` brings it back."""
    skipped_ms = 0.0
    stage = await make_stage(PLAIN, workers=2, clock=lambda: system_clock() + skipped_ms, breaker={"open_s": 3600})
    stage.script(stage.replying[:1], FAILS)
    bad = stage.gateway.fleet.workers[0]
    while bad.takes_turns(stage.gateway.clock()):
        assert (await stage.ask()).status == 200
        assert len(stage.replying[0].calls) <= 5
    assert len(stage.replying[0].calls) == 5
    stage.script(stage.replying[:1], Script())
    skipped_ms = 3_600_000.0
    served = len(stage.replying[0].calls)
    while len(stage.replying[0].calls) == served:
        assert (await stage.ask()).status == 200
    assert bad.breaker.state(stage.gateway.clock()) == "closed"


async def test_retries_have_a_budget(make_stage: StageMaker) -> None:
    """Without one a fault of the whole fleet would be multiplied by the number of tries."""
    stage = await make_stage(PLAIN, retry={"budget_ratio": 0.0, "budget_floor": 2}, breaker={"failures": 100})
    stage.script(stage.replying, FAILS)
    for _ in range(5):
        assert (await stage.ask()).status == 502
    assert sum(tries(stage)) == 5 + 2


async def test_no_worker_at_all(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, breaker={"failures": 1, "open_s": 60})
    stage.script(stage.replying, DROPS)
    assert (await stage.ask()).status == 502
    call = await stage.ask()
    assert call.status == 503
    assert int(call.headers["retry-after"]) >= 1
    assert call.error["code"] == "no_worker"
    assert_openai_error(call)
