"""A client that leaves costs nothing from then on: engines are told at once and every count is freed."""

from __future__ import annotations

import pytest
from fake_engine import Script
from gateway_stage import Stage, StageMaker
from waiting import until

from router.clock import system_clock


async def test_mid_stream(stage: Stage) -> None:
    stage.script(stage.replying, Script(events=50, stay_after=3))
    call = await stage.send(stream=True)
    await call.until_body(b"t2")
    await call.leave()
    await stage.settled()
    assert [len(engine.aborted) for engine in stage.replying].count(1) == 1
    await _both_told(stage)


@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_first_byte(stage: Stage, stream: bool) -> None:
    stage.script(stage.engines, Script(hang=True))
    call = await stage.send(stream=stream)
    legs = 2 if stage.prefill else 1
    await until(lambda: stage.calls() == legs, "the engines have the request")
    assert not stage.idle
    await call.leave()
    await stage.settled()
    assert sum(len(engine.aborted) for engine in stage.engines) == legs
    await _both_told(stage)


async def test_while_waiting_for_a_place(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, pool={"max_running_turns": 1})
    stage.script(stage.engines, Script(hang=True))
    running = await stage.send()
    admission = stage.gateway.fleet.pools["default"].admission
    legs = 2 if stage.prefill else 1
    await until(lambda: stage.calls() == legs, "the first turn runs")
    waiting = await stage.send()
    await until(lambda: admission.waiting == 1, "the second turn waits")
    await waiting.leave()
    await until(lambda: admission.waiting == 0, "the second turn is forgotten")
    assert stage.calls() == legs
    await running.leave()
    await stage.settled()


async def test_the_next_turn_is_served(stage: Stage) -> None:
    stage.script(stage.engines, Script(hang=True))
    call = await stage.send(stream=True)
    await until(lambda: stage.calls() > 0, "the engines have the request")
    await call.leave()
    await stage.settled()
    stage.script(stage.engines, Script())
    assert (await stage.ask()).status == 200


@pytest.mark.parametrize(("after_ms", "state"), [(60_000.0, "open"), (500.0, "closed")])
async def test_long_before_any_byte_charges_the_worker(make_stage: StageMaker, kind: str, after_ms: float, state: str) -> None:
    """Clients that give up before `first_byte_s` must not keep a worker that swallows everything in use."""
    skipped_ms = 0.0
    stage = await make_stage(
        kind, workers=1, clock=lambda: system_clock() + skipped_ms, breaker={"failures": 3, "window_s": 3600, "open_s": 3600}
    )
    stage.script(stage.engines, Script(hang=True))
    for _ in range(3):
        call = await stage.send(stream=True)
        await until(lambda: all(engine.active for engine in stage.engines), "the engines have the request")
        skipped_ms += after_ms
        await call.leave()
        await stage.settled()
    now_ms = stage.gateway.clock()
    assert {worker.breaker.state(now_ms) for worker in stage.gateway.fleet.workers} == {state}


async def _both_told(stage: Stage) -> None:
    """On a pair a closed connection is not enough: each engine is told to drop the request by its id."""
    if not stage.prefill:
        return
    await until(lambda: all(sum(len(e.aborts) for e in group) for group in (stage.prefill, stage.replying)), "aborts by rid")
    rids = {rid for engine in stage.engines for rid in engine.aborts}
    assert rids == {call.json["rid"] for engine in stage.engines for call in engine.calls}
    assert len(rids) == 1
