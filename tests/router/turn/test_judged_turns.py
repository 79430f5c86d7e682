"""What served turns say of the predictions that placed them: by part of a turn, and against the runner-up."""

from __future__ import annotations

from prompt_stage import CHAT, MODEL, prompt_stage, until

from loadback.admin_api import Predicted, Worker, Workers, fetch
from loadback.doctor.check import Mark
from loadback.doctor.gateway import check_calibration

STREAMED = {"model": MODEL, "max_tokens": 16, "stream": True}


async def test_streamed_turns_are_judged_by_part_and_against_the_runner_up() -> None:
    async with prompt_stage() as stage:
        for number in range(64):
            body = {**STREAMED, "messages": [{"role": "user", "content": f"question {number}"}]}
            assert (await stage.http.post(CHAT, json=body)).status_code == 200
        await until(lambda: sum(w.rates.accuracy.turns for w in stage.gateway.fleet.workers) == 64, "all were judged")
        workers = (await fetch(stage.http, "/admin/workers", Workers)).workers
    assert {name for worker in workers for name in worker.terms} == {"prefill", "decode"}, "nothing is transferred"
    assert sum(worker.terms["prefill"].turns for worker in workers) == 64
    assert sum(worker.regret.turns for worker in workers) == 4, "every sixteenth"
    told = {check.name for worker in workers for check in check_calibration(worker)}
    assert {"time to first token", "time of prefill", "time of decode", "regret against the runner-up"} <= told


def test_a_worker_that_was_never_judged_is_not_told_of() -> None:
    assert check_calibration(Worker("p0")) == []


def test_what_drifts_is_a_warning() -> None:
    worker = Worker("p0", terms={"transfer": Predicted(300, 0.5, 0.1, drifting=True)})
    (check,) = check_calibration(worker)
    assert (check.name, check.mark) == ("time of transfer", Mark.WARN)
