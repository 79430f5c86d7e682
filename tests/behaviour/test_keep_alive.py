"""While an engine is silent the client's connection is kept open in its protocol's own way; the 200 is committed late."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import MODEL, Script
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import CHAT, End, send
from waiting import until

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"max_tokens": 3, "messages": [USER]},
}
FORMS = {
    CHAT: b": keep-alive\n\n",
    "/v1/completions": b": keep-alive\n\n",
    "/v1/responses": b"event: keepalive\ndata: ",  # a comment would not reset Codex's limit
    "/v1/messages": b"event: ping\ndata: ",
}
FAST = {"keep_alive_s": 0.02, "commit_s": 0.03}
LATE = {"keep_alive_s": 0.02, "commit_s": 3600}


@pytest.mark.parametrize("path", BODIES)
async def test_each_protocol_has_its_form(make_stage: StageMaker, kind: str, path: str) -> None:
    stage = await make_stage(kind, timeouts=FAST)
    stage.script(stage.replying, Script(stay_after=0))
    call = await send(stage.port, {"model": MODEL, "stream": True, **BODIES[path]}, path)
    await call.until_body(FORMS[path])
    assert (call.status, call.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    stage.go()
    await call.finish()
    assert call.end is End.CLEAN
    assert b"t0" in call.body
    assert stage.gateway.metrics.keep_alives >= 1


async def test_between_events(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, timeouts=FAST)
    stage.script(stage.replying, Script(stay_after=2))
    call = await stage.send(stream=True)
    await call.until_body(b"t1")
    await call.until_body(b": keep-alive\n\n: keep-alive\n\n")
    stage.go()
    await call.finish()
    assert call.events[-1] == b"data: [DONE]"


async def test_after_an_early_200_the_turn_is_still_tried_elsewhere(make_stage: StageMaker, kind: str) -> None:
    """Keep-alives are no event of the reply: a failed try can still be repeated unseen."""
    stage = await make_stage(kind, timeouts=FAST)
    stage.script_first(stage.replying, Script(stay_after=0, cut_after=0))
    call = await stage.send(stream=True)
    await call.until_body(FORMS[CHAT])
    stage.go()
    await call.finish()
    assert (call.end, call.events[-1]) == (End.CLEAN, b"data: [DONE]")
    assert stage.calls(stage.replying) == 2


async def test_after_an_early_200_a_failure_is_an_abort(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, timeouts=FAST, retry={"max_tries": 1})
    stage.script(stage.replying, Script(stay_after=0, cut_after=0))
    call = await stage.send(stream=True)
    await call.until_body(FORMS[CHAT])
    stage.go()
    await call.finish()
    assert call.end is End.BROKEN
    assert b"error" not in call.body
    await stage.settled()


async def test_before_the_commit_a_failure_has_its_status(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, timeouts=LATE, retry={"max_tries": 1})
    stage.script(stage.replying, Script(status=500))
    call = await stage.ask(stream=True)
    assert call.status == 502


async def test_an_early_200_names_the_worker(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, timeouts=FAST)
    stage.script(stage.replying, Script(hang=True))
    call = await stage.send(stream=True)
    await call.until_body(FORMS[CHAT])
    await until(stage.calls, "the engine has the request")
    busy = next(engine for engine in stage.replying if engine.calls)
    assert call.headers["x-loadback-worker"] == f"127.0.0.1:{busy.port}"
    await call.leave()
    await stage.settled()


async def test_a_reply_without_stream_gets_none(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, timeouts=FAST)
    stage.script(stage.replying, Script(hang=True))
    silent = await stage.send()
    streamed = await stage.send(stream=True)
    await streamed.until_body(FORMS[CHAT] * 2)
    assert not silent.reader._buffer  # type: ignore[attr-defined]
    for call in (silent, streamed):
        await call.leave()
    await stage.settled()


async def test_a_client_that_leaves_in_the_silence(stage: Stage) -> None:
    stage.script(stage.engines, Script(hang=True))
    call = await stage.send(stream=True)
    await until(lambda: stage.calls() > 0, "the engines have the request")
    await call.leave()
    await stage.settled()
