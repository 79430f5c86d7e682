"""A stream that breaks: before its first real event the turn is tried elsewhere, after it the client's connection is aborted.

Never a clean end and never a `[DONE]`: most clients take a fragment that ends cleanly for the whole answer.
"""

from __future__ import annotations

import pytest
from fake_engine import Script
from gateway_stage import PD, PLAIN, Stage, StageMaker
from raw_client import Call, End, send
from waiting import until

BROKEN = {
    "dies": Script(stay_after=2, cut_after=2),
    "reports an error": Script(stay_after=2, error_after=2),
    "ends without its end marker": Script(stay_after=2, end_marker=False),
}
REVOCABLE = {
    "dies": Script(cut_after=0),
    "reports an error": Script(error_after=0),
}


def served_elsewhere(call: Call) -> None:
    assert (call.status, call.end) == (200, End.CLEAN)
    assert call.events[-1] == b"data: [DONE]"
    assert b"error" not in call.body


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_after_the_first_event_the_client_is_aborted(stage: Stage, script: Script) -> None:
    stage.script(stage.replying, script)
    call = await stage.send(stream=True)
    await call.until_body(b"t1")
    stage.go()
    await call.finish()
    assert call.status == 200
    assert call.end is End.BROKEN
    assert b"[DONE]" not in call.body
    assert b"error" not in call.body
    assert sum(len(engine.calls) for engine in stage.replying) == 1
    await stage.settled()


@pytest.mark.parametrize("script", REVOCABLE.values(), ids=REVOCABLE)
async def test_before_it_another_worker_serves_the_turn(stage: Stage, script: Script) -> None:
    stage.script_first(stage.replying, script)
    call = await stage.ask(stream=True)
    served_elsewhere(call)
    assert stage.calls(stage.replying) == 2
    await stage.settled()


async def test_an_error_event_that_blames_the_request_is_not_retried(stage: Stage) -> None:
    stage.script(stage.replying, Script(error_after=0, error_code=400))
    call = await stage.ask(stream=True)
    assert call.status == 400
    assert call.error["message"] == "scripted"
    assert stage.calls(stage.replying) == 1


async def test_error_events_everywhere(stage: Stage) -> None:
    stage.script(stage.replying, Script(error_after=0))
    call = await stage.ask(stream=True)
    assert call.status == 502
    assert call.error["type"] == "server_error"
    assert [len(engine.calls) for engine in stage.replying] == [1] * len(stage.replying)
    await stage.settled()


@pytest.mark.parametrize("script", [Script(cut_after=2), Script(error_after=2)], ids=["dies", "reports an error"])
async def test_a_prefill_leg_that_breaks_under_a_running_stream(pd: Stage, script: Script) -> None:
    """Its KV is gone or wrong: what decode goes on to say cannot be trusted."""
    pd.script(pd.replying, Script(events=50, stay_after=3))
    pd.script(pd.prefill, script)
    call = await pd.ask(stream=True)
    assert call.end is End.BROKEN or call.status >= 500
    assert b"[DONE]" not in call.body
    await pd.settled()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/completions"])
async def test_other_protocols_are_aborted_too(make_stage: StageMaker, path: str) -> None:
    stage = await make_stage(PLAIN)
    stage.script(stage.replying, Script(stay_after=3, cut_after=3))
    body = stage.body(stream=True, input="x", prompt="x", max_tokens=5)
    call = await send(stage.port, body, path)
    await call.until_body(b"t0")
    stage.go()
    await call.finish()
    assert (call.status, call.end) == (200, End.BROKEN)
    await stage.settled()


@pytest.mark.parametrize("kind", [PLAIN, PD])
async def test_the_worker_is_not_blamed_for_long(make_stage: StageMaker, kind: str) -> None:
    """One broken stream costs one failure: the worker serves the next turn."""
    stage = await make_stage(kind, workers=1)
    stage.replying[0].scripts = [Script(cut_after=2)]
    assert (await stage.ask(stream=True)).end is End.BROKEN
    await until(lambda: stage.idle, "nothing left waiting")
    served_elsewhere(await stage.ask(stream=True))
