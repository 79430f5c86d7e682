"""Turns that wait at the gateway because their worker has enough to compute, as clients and engines see it."""

from __future__ import annotations

from fake_engine import Script
from gateway_stage import Stage, StageMaker
from raw_client import Call
from waiting import until

from router.fleet.hold import KEEP_TURNS, Hold

HOLDING = {"hold_ms": 0.001}  # any work that is predicted to be left


def hold_of(stage: Stage) -> Hold:
    return stage.gateway.dispatcher.holds["default"]


async def fill(stage: Stage) -> list[Call]:
    """As many turns as are let through, all of them in prefill until the engines are let go on."""
    stage.script(stage.engines, Script(stay_after=0))
    calls = [await stage.send(stream=True) for _ in range(KEEP_TURNS)]
    for engine in stage.engines:
        await engine.called(KEEP_TURNS)
    return calls


async def test_a_held_turn_is_sent_when_a_prefill_is_over(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, workers=1, admission=HOLDING)
    calls = await fill(stage)
    held = await stage.send(stream=True)
    await until(lambda: hold_of(stage).waiting == 1, "the third turn is held")
    assert stage.calls(stage.replying) == KEEP_TURNS
    stage.go()
    for call in (*calls, held):
        assert (await call.finish()).status == 200
    assert (hold_of(stage).waiting, hold_of(stage).held) == (0, 1)
    await stage.settled()


async def test_a_client_that_leaves_is_held_no_longer(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, workers=1, admission=HOLDING)
    calls = await fill(stage)
    held = await stage.send(stream=True)
    await until(lambda: hold_of(stage).waiting == 1, "the third turn is held")
    await held.leave()
    await until(lambda: hold_of(stage).waiting == 0, "nobody waits")
    stage.go()
    for call in calls:
        assert (await call.finish()).status == 200
    await stage.settled()
    assert stage.calls(stage.replying) == KEEP_TURNS, "it was never sent"


async def test_a_failed_prefill_makes_room_as_well(make_stage: StageMaker) -> None:
    stage = await make_stage("plain", workers=1, admission=HOLDING)
    calls = await fill(stage)
    held = await stage.send(stream=True)
    await until(lambda: hold_of(stage).waiting == 1, "the third turn is held")
    for call in calls:
        await call.leave()
    stage.go()
    assert (await held.finish()).status == 200
    await stage.settled()
