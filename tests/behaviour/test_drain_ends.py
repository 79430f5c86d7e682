"""What the end of the drain breaks was not left by its client; and how many tries a turn is said to have had."""

from __future__ import annotations

import pytest
from fake_engine import Script
from gateway_stage import PLAIN, Stage, StageMaker
from raw_client import End
from structlog.testing import capture_logs
from waiting import until

from router.turn.record import Outcome, TurnRecord

pytestmark = pytest.mark.slow


def newest(stage: Stage) -> TurnRecord:
    return stage.gateway.turns.records.newest(1)[0]


async def ended(stage: Stage, turns: int) -> list[TurnRecord]:
    """The records of the first `turns`, once the drain was broken off as by a second signal."""
    records = stage.gateway.turns.records
    for _ in range(2):
        stage.server.stop()
    await until(lambda: len(records.newest(9)) == turns, "every turn has ended")
    return records.newest(9)


async def test_a_stream_that_the_drain_cuts_is_aborted(stage: Stage) -> None:
    stage.script(stage.replying, Script(events=50, stay_after=3))
    call = await stage.send(stream=True)
    await call.until_body(b"t2")
    with capture_logs() as lines:
        (record,) = await ended(stage, 1)
    assert (record.outcome, record.status) == (Outcome.ABORTED, 200)
    assert [line["request"] for line in lines if line["event"] == "reply_aborted"] == [record.request_id]
    assert (await call.finish()).end is End.BROKEN
    assert stage.gateway.metrics.turns == {("aborted", "first"): 1}


async def test_so_is_what_had_no_reply_yet(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind, pool={"max_running_turns": 1})
    stage.script(stage.engines, Script(hang=True))
    running, waiting = await stage.send(), await stage.send()
    admission = stage.gateway.fleet.pools["default"].admission
    await until(lambda: admission.waiting == 1 and stage.calls() > 0, "one turn runs and one waits")
    records = await ended(stage, 2)
    assert {(record.outcome, record.status) for record in records} == {(Outcome.ABORTED, 503)}
    assert sorted(record.tries for record in records) == [0, 1]
    await running.close()
    await waiting.close()


async def test_a_client_that_leaves_during_the_drain_has_left(stage: Stage) -> None:
    stage.script(stage.replying, Script(events=50, stay_after=3))
    other, call = await stage.send(stream=True), await stage.send(stream=True)
    await other.until_body(b"t2")
    await call.until_body(b"t2")
    stage.server.stop()
    await call.leave()
    await until(lambda: bool(stage.gateway.turns.records.newest(1)), "the turn has ended")
    assert (newest(stage).outcome, newest(stage).status) == (Outcome.LEFT, 499)
    await other.close()


async def test_what_no_worker_was_asked_for_had_no_try(make_stage: StageMaker, kind: str) -> None:
    stage = await make_stage(kind)
    for worker in stage.gateway.fleet.workers:
        stage.gateway.fleet.drain(worker.worker_id)
    assert (await stage.ask()).error["code"] == "no_worker"
    assert (newest(stage).tries, newest(stage).worker) == (0, "")


async def test_a_try_that_nobody_was_left_for_is_not_counted(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, workers=1)
    stage.script(stage.engines, Script(status=500))
    assert (await stage.ask()).status == 502
    assert newest(stage).tries == 1


async def test_logged_times_are_rounded(make_stage: StageMaker) -> None:
    stage = await make_stage(PLAIN, log={"turns": True})
    with capture_logs() as lines:
        assert (await stage.ask(stream=True)).status == 200
        await stage.settled()
    (line,) = [line for line in lines if line["event"] == "turn"]
    assert line["ttft_ms"] == round(line["ttft_ms"], 1)
    assert line["total_ms"] == round(line["total_ms"], 1)
