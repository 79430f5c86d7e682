"""A prefetch of a prompt that no thread had is for the turn that it turns out to be the prompt of."""

from __future__ import annotations

from prefetch_world import Drive, World

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, Place

W1 = WorkerKey("w1")
TOKENS = 1_600


def asked(*, arrives: bool = True) -> tuple[Drive, Job]:
    """`ask-1` for worker `w1`; `t` has the same prompt."""
    run = Drive(Planner(PrefetchParams()), World())
    for subject in ("ask-1", "t"):
        run.world.remote(subject, TOKENS)
    job = run.planner.new_job()
    run.tell(ev.Asked(job, "ask-1", 10_000.0, W1))
    if arrives:
        for move in sorted(run.stages):
            run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    found = run.planner.job(job)
    assert found is not None
    return run, found


def test_the_turn_of_its_thread_uses_it() -> None:
    run, job = asked()
    run.tell(ev.Claimed("ask-1", "t"))
    run.tell(ev.Sent("t", W1))
    run.tell(ev.Served("t", W1, TOKENS))
    assert (job.state.value, job.subject) == ("consumed", "t")
    assert not run.holds
    tally = run.planner.tallies[Trigger.EXPLICIT]
    assert (tally.useful_bytes, tally.wasted_bytes) == (TOKENS * 1000, 0)


def test_it_may_be_told_when_the_turn_is_over() -> None:
    run, job = asked()
    run.tell(ev.Sent("t", W1))
    run.tell(ev.Claimed("ask-1", "t"))
    run.tell(ev.Served("t", W1, TOKENS))
    assert job.state.value == "consumed"


def test_it_takes_the_place_of_what_ran_for_the_thread() -> None:
    run, job = asked()
    other = run.planner.new_job()
    run.tell(ev.Asked(other, "t", 10_000.0, W1))
    run.tell(ev.Claimed("ask-1", "t"))
    before = run.planner.job(other)
    assert before is not None
    assert (before.state, run.planner.board.of_subject("t")) == (JobState.CANCELLED, job)
    assert set(run.holds) == {job.id}
    assert not run.stages


def test_what_still_comes_comes_as_the_thread_s() -> None:
    """Chunks that have not begun are asked for by the thread's own pages."""
    run, _ = asked(arrives=False)
    run.tell(ev.Claimed("ask-1", "t"))
    for move in sorted(run.stages):
        run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    assert [hold.subject for hold in run.holds.values()] == ["t"]
    assert run.planner.board.of_subject("ask-1") is None


def test_what_has_ended_cannot_be_claimed() -> None:
    run, job = asked()
    run.tell(ev.CancelJob(job.id))
    run.tell(ev.Claimed("ask-1", "t"))
    assert run.planner.board.of_subject("t") is None


def test_a_lease_says_from_where_on_its_pages_were_moved() -> None:
    run = Drive(Planner(PrefetchParams()), World())
    run.world.extents["ask-1"] = (
        Extent(0, TOKENS, (Place("n1", Tier.L3),)),
        Extent(TOKENS, TOKENS, (Place("n2", Tier.L3),)),
    )
    run.world.prompts["ask-1"] = 2 * TOKENS + 100
    run.tell(ev.Asked(run.planner.new_job(), "ask-1", 10_000.0, W1))
    for move in sorted(run.stages):
        run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    (hold,) = run.holds.values()
    assert (hold.tokens, hold.moved_from) == (2 * TOKENS, TOKENS)
