"""Many workers change at once: each thread is weighed once, and a few at a time."""

from __future__ import annotations

from contextlib import suppress

from prefetch_world import PAGE, Drive, drive

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Trigger

TOKENS = 1000 * PAGE
THREADS = [f"t{number}" for number in range(40)]
NEW = [WorkerKey(f"w{number}") for number in range(10, 60)]
AT_ONCE = 16


def idle(*, to: str) -> Drive:
    """All threads last ran on w2, and would go to another worker now."""
    run = drive()
    for thread in THREADS:
        run.world.remote(thread, TOKENS, "n2", to=to)
        run.tell(ev.Ended(thread, WorkerKey("w2"), "bash", "cli"))
    run.world.asked = 0
    return run


def live(run: Drive, until_ms: float) -> int:
    """How often the cost model was asked."""
    whole = 0
    while (due := run.planner.next_ms) is not None and due < until_ms:
        run.now_ms, run.world.asked = due, 0
        run.tell(ev.Tick())
        assert run.world.asked <= AT_ONCE
        whole += run.world.asked
    return whole


def moved(run: Drive) -> dict[str, Trigger]:
    return {job.subject: job.trigger for job in run.planner.board.active.values()}


def test_workers_that_come_together_are_weighed_together() -> None:
    run = idle(to="59")
    for worker in NEW:
        run.tell(ev.ScaledOut(worker))
    assert run.world.asked <= AT_ONCE, "turns wait meanwhile"
    asked = run.world.asked
    assert asked + live(run, 20.0) <= len(THREADS) + AT_ONCE, "those weighed for the first alone are weighed again"
    assert set(moved(run)) >= set(THREADS[:-AT_ONCE])
    assert set(moved(run).values()) == {Trigger.SCALE_OUT}


def test_threads_of_workers_that_drain_together_are_weighed_a_few_at_a_time() -> None:
    run = idle(to="1")
    for worker in ("w2", "w3", "w4"):
        run.tell(ev.Drained(WorkerKey(worker)))
    assert run.world.asked <= AT_ONCE
    assert live(run, 20.0) <= len(THREADS)
    assert moved(run) == dict.fromkeys(THREADS, Trigger.DRAIN)


def test_a_thread_that_must_leave_goes_anywhere_though_workers_are_new() -> None:
    run = idle(to="1")
    run.tell(ev.ScaledOut(NEW[0]))  # nobody would go there, and most are still to be asked
    run.tell(ev.Drained(WorkerKey("w2")))
    run.tell(ev.ScaledOut(NEW[1]))
    live(run, 20.0)
    assert moved(run) == dict.fromkeys(THREADS, Trigger.DRAIN)


def test_a_view_that_raises_keeps_nobody_waiting() -> None:
    run = idle(to="59")
    del run.world.prompts[THREADS[7]]
    with suppress(KeyError):
        run.tell(ev.ScaledOut(NEW[-1]))
    live(run, 20.0)
    assert set(moved(run)) == {*THREADS} - {THREADS[7]}
