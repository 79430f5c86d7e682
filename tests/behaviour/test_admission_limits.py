"""The bounded queue before a pool, as clients see it."""

from __future__ import annotations

from fake_engine import Script
from gateway_stage import Stage, StageMaker
from raw_client import Call
from waiting import until


async def hold_every_place(stage: Stage, count: int = 1) -> list[Call]:
    """Calls that run until the engines are let go on."""
    stage.script(stage.replying, Script(stay_after=1))
    calls = [await stage.send(stream=True) for _ in range(count)]
    for call in calls:
        await call.until_body(b"t0")
    return calls


async def test_a_full_queue_is_429_with_retry_after(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, pool={"max_running_turns": 1}, admission={"queue_limit": 0})
    held = await hold_every_place(stage)
    refused = await stage.ask()
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    await held[0].leave()
    await stage.settled()
    stage.script(stage.replying, Script())
    assert (await stage.ask()).status == 200


async def test_a_place_that_comes_too_late_is_503(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, pool={"max_running_turns": 1}, admission={"queue_timeout_s": 0.02})
    held = await hold_every_place(stage)
    refused = await stage.ask()
    assert (refused.status, refused.error["code"]) == (503, "queue_timeout")
    assert int(refused.headers["retry-after"]) >= 1
    await held[0].leave()
    await stage.settled()


async def test_a_waiting_turn_is_served_when_a_stream_ends(make_stage: StageMaker, kind: str) -> None:
    """Permits are held to the end of the stream, not to its first byte."""
    stage = await make_stage(kind, pool={"max_running_turns": 1})
    held = await hold_every_place(stage)
    admission = stage.gateway.fleet.pools["default"].admission
    waiting = await stage.send()
    await until(lambda: admission.waiting == 1, "the second turn waits")
    assert stage.calls(stage.replying) == 1
    stage.go()
    assert (await waiting.finish()).status == 200
    assert (await held[0].finish()).status == 200
    await stage.settled()
