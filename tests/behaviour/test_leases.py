"""Nothing that a turn takes (a breaker's trial, a permit, a booking) outlives it, whatever goes wrong in its replies."""

from __future__ import annotations

import json

import pytest
from fake_engine import MODEL, Script
from gateway_stage import PD, PLAIN, Stage, StageMaker
from raw_client import ask
from waiting import until

TRIPPED = {"failures": 2, "open_s": 0.05}


async def test_a_trial_is_released_when_the_other_leg_fails(make_stage: StageMaker) -> None:
    """Decode's breaker is half-open and the trial dies of a client's fault that prefill finds."""
    stage = await make_stage(PD, workers=1, breaker=TRIPPED)
    decode, prefill = stage.replying[0], stage.prefill[0]
    decode.script = Script(status=500)
    for _ in range(4 * TRIPPED["failures"]):
        await stage.ask()
    breaker = next(w.breaker for w in stage.gateway.fleet.workers if w.config.url == decode.url)
    await until(lambda: breaker.state(stage.gateway.clock()) == "half-open", "the breaker half-open")
    prefill.scripts = [Script(status=400)]
    decode.script = Script(hang=True)
    assert (await stage.ask()).status == 400
    decode.script = Script()
    assert (await stage.ask()).status == 200
    await stage.settled()


GOOD = json.dumps({"choices": [{"index": 0, "text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}]}).encode()
GARBAGE = [
    b"OK",
    b'{"choices":[',
    b'{"choices":[null]}',
    b'{"choices":{"a":1}}',
    b'{"choices":[{"index":[],"logprobs":{"tokens":[1]}}]}',
]


@pytest.mark.parametrize("garbled", ["prefill", "decode"])
@pytest.mark.parametrize("garbage", GARBAGE)
async def test_logprobs_that_cannot_be_merged_leave_the_reply_as_it_is(pd: Stage, garbled: str, garbage: bytes) -> None:
    replies = {"prefill": GOOD, "decode": GOOD, garbled: garbage}
    for engines, role in ((pd.prefill, "prefill"), (pd.replying, "decode")):
        pd.script(engines, Script(body=replies[role]))
    body = {"model": MODEL, "prompt": "hello", "echo": True, "logprobs": 1}
    call = await ask(pd.port, body, path="/v1/completions")
    assert call.status == 200
    if garbled == "decode":
        assert call.body == garbage
    await pd.settled()


async def test_comments_are_no_first_event(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, workers=1, timeouts={"first_byte_s": 0.2}, retry={"max_tries": 1})
    stage.script(stage.engines, Script(comments=True))
    call = await stage.ask(stream=True)
    assert call.status == 504
    await stage.settled()


async def test_a_worker_with_dead_connections_does_not_use_up_the_tries(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, workers=2)
    first = await stage.ask()
    served = next(engine for engine in stage.engines if engine.calls)
    assert first.status == 200
    served.script = Script(drop=True)
    for _ in range(3):
        assert (await stage.ask()).status == 200
    await stage.settled()
