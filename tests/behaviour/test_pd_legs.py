"""A disaggregated pair of which one leg fails while the other waits: the right answer at once, and nothing left waiting."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, Script
from gateway_stage import Stage
from raw_client import End
from waiting import until

HANGS = Script(hang=True)
BAD_REQUEST = Script(status=400)
FAILS = Script(status=500)
FULL = Script(status=503)
DROPS = Script(drop=True)
ERROR_EVENT = Script(error_after=0)

# What fails, and the status that the client is told when every pair fails so.
FAULTS = {"400": (BAD_REQUEST, 400), "500": (FAILS, 502), "503": (FULL, 503), "drop": (DROPS, 502)}
LEGS = ["prefill", "decode"]


def split(pd: Stage, leg: str) -> tuple[list[FakeEngine], list[FakeEngine]]:
    """The engines of the failing leg, and those of the one that waits."""
    return (pd.prefill, pd.replying) if leg == "prefill" else (pd.replying, pd.prefill)


async def told_to_abort(pd: Stage, failing: list[FakeEngine] | None = None) -> None:
    """Both engines of a failed try were told its id. `failing`: only the first of them to be called has failed."""
    rids = {call.json["rid"] for engine in pd.replying for call in engine.calls}
    if failing is not None:
        await until(lambda: any(engine.aborts for engine in failing), "an abort by id")
        rids &= {rid for engine in failing for rid in engine.aborts}
    assert rids
    for group in (pd.prefill, pd.replying):
        await until(lambda group=group: rids == {rid for engine in group for rid in engine.aborts}, "aborts by id")


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_one_leg_fails_while_the_other_waits(pd: Stage, leg: str, fault: str, stream: bool) -> None:
    failing, waiting = split(pd, leg)
    script, status = FAULTS[fault]
    pd.script(failing, script)
    pd.script(waiting, HANGS)
    call = await pd.ask(stream=stream)
    assert (call.status, call.end) == (status, End.CLEAN)
    assert call.error["message"]
    assert ("retry-after" in call.headers) == (status == 503)
    assert pd.calls(failing) == (1 if fault == "400" else 2)
    await pd.settled()
    await told_to_abort(pd)


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("fault", ["500", "503", "drop"])
@pytest.mark.parametrize("stream", [True, False])
async def test_another_pair_serves_the_turn(pd: Stage, leg: str, fault: str, stream: bool) -> None:
    """Only the failed worker is left out, and the waiting leg of the failed try is gone."""
    failing, waiting = split(pd, leg)
    pd.script_first(failing, FAULTS[fault][0])
    pd.script(waiting, Script(stay_after=0))
    call = await pd.send(stream=stream)
    await until(lambda: [len(engine.calls) for engine in failing] == [1, 1], "the turn was tried on both")
    pd.go(waiting)
    await call.finish()
    assert (call.status, call.end) == (200, End.CLEAN)
    await pd.settled()
    assert sum(len(engine.aborted) for engine in waiting) == 1
    await told_to_abort(pd, failing)


async def test_every_try_has_a_fresh_room_and_id(pd: Stage) -> None:
    pd.script(pd.prefill, FAILS)
    pd.script(pd.replying, HANGS)
    assert (await pd.ask()).status == 502
    for engines in (pd.prefill, pd.replying):
        legs = [call.json for engine in engines for call in engine.calls]
        assert len(legs) == 2
        assert len({leg["bootstrap_room"] for leg in legs}) == 2
        assert len({leg["rid"] for leg in legs}) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_event_of_the_prefill_leg_counts(pd: Stage, stream: bool) -> None:
    pd.script(pd.prefill, ERROR_EVENT if stream else FAILS)
    pd.script(pd.replying, HANGS)
    call = await pd.ask(stream=stream)
    assert call.status == 502
    await pd.settled()


async def test_decode_may_finish_before_prefill_is_read_to_its_end(pd: Stage) -> None:
    """The client has its whole reply; the prefill reply is not waited for."""
    pd.script(pd.prefill, Script(stay_after=1))
    call = await pd.ask(stream=True)
    assert (call.status, call.end) == (200, End.CLEAN)
    assert call.events[-1] == b"data: [DONE]"
    for engine in pd.prefill:
        engine.go()
    await pd.settled()


async def test_the_pool_serves_again_after_all_these(pd: Stage) -> None:
    """Every other leg hangs: a decode leg that answers beside a prefill that hangs is no engine's."""
    pd.script(pd.engines, HANGS)
    for leg in LEGS:
        for script, _ in FAULTS.values():
            failing, _ = split(pd, leg)
            failing[0].scripts = [script]
            call = await pd.send()
            await until(lambda: pd.calls() >= 2, "the legs are out")
            await call.leave()
            await pd.settled()
            for engine in pd.engines:
                engine.calls.clear()
                engine.scripts.clear()
    pd.script(pd.engines, Script())
    for worker in pd.gateway.fleet.workers:
        worker.breaker.on_success()
    assert (await pd.ask()).status == 200
