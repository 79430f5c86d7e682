"""`n` > 1: engines that can take it get it as it is; on a disaggregated pool it becomes n calls and one reply."""

from __future__ import annotations

import json

import pytest
from fake_engine import Script
from gateway_stage import Stage
from raw_client import Call, End
from waiting import until

pytestmark = pytest.mark.slow


def choices_of(call: Call) -> dict[int, str]:
    """The text of every choice, put together from a stream or a whole reply."""
    if not call.headers["content-type"].startswith("text/event-stream"):
        return {choice["index"]: choice["message"]["content"] for choice in call.json["choices"]}
    texts: dict[int, str] = {}
    for event in call.events[:-1]:
        for choice in json.loads(event[6:])["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"]["content"]
    return texts


async def test_a_unified_engine_does_it_itself(plain: Stage) -> None:
    call = await plain.ask(n=2)
    assert len(choices_of(call)) == 2
    assert plain.calls() == 1
    assert next(engine for engine in plain.engines if engine.calls).calls[0].json["n"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_pair_gets_one_call_a_choice(pd: Stage, stream: bool) -> None:
    call = await pd.ask(n=3, stream=stream)
    assert (call.status, call.end) == (200, End.CLEAN)
    texts = choices_of(call)
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 1
    legs = [leg.json for engine in pd.replying for leg in engine.calls]
    assert [leg["n"] for leg in legs] == [1, 1, 1]
    assert len({leg["bootstrap_room"] for leg in legs}) == 3
    await pd.settled()


async def test_usage_is_added_up(pd: Stage) -> None:
    whole = await pd.ask(n=2)
    assert whole.json["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    streamed = await pd.ask(n=2, stream=True, stream_options={"include_usage": True})
    last = json.loads(streamed.events[-2][6:])
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert streamed.body.count(b'"usage":{') == 1
    assert len({json.loads(event[6:])["id"] for event in streamed.events[:-1]}) == 1


async def test_usage_is_not_told_unasked(pd: Stage) -> None:
    call = await pd.ask(n=2, stream=True)
    assert b'"usage":{' not in call.body
    assert call.body.count(b"[DONE]") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_one_branch_is_tried_elsewhere(pd: Stage, stream: bool) -> None:
    pd.replying[0].scripts = [Script(status=500)]
    call = await pd.ask(n=2, stream=stream)
    assert (call.status, sorted(choices_of(call))) == (200, [0, 1])
    await pd.settled()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_branch_that_fails_for_good_fails_the_whole(pd: Stage, stream: bool) -> None:
    for engine in pd.replying:
        engine.scripts = [Script(status=400)]
    call = await pd.ask(n=2, stream=stream)
    assert call.status == 400
    await pd.settled()


async def test_a_branch_that_breaks_aborts_the_whole(pd: Stage) -> None:
    pd.script(pd.replying, Script(events=9, stay_after=2, cut_after=2))
    call = await pd.send(n=2, stream=True)
    await call.until_body(b"t1")
    pd.go()
    await call.finish()
    assert call.end is End.BROKEN
    assert b"[DONE]" not in call.body
    await pd.settled()


async def test_a_client_that_leaves_ends_every_branch(pd: Stage) -> None:
    pd.script(pd.engines, Script(hang=True))
    call = await pd.send(n=2, stream=True)
    await until(lambda: pd.calls() == 4, "both branches have both legs")
    await call.leave()
    await pd.settled()
    assert sum(len(engine.aborted) for engine in pd.engines) == 4


async def test_an_absurd_n_is_refused_before_anything_is_sent(pd: Stage) -> None:
    call = await pd.ask(n=1_000_000_000)
    assert (call.status, call.error["param"]) == (400, "n")
    assert not any(engine.calls for engine in pd.engines)
