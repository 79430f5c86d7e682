"""`max_bytes` of an explicit call: never exceeded, whatever its pages weigh."""

from __future__ import annotations

from prefetch_world import PAGE, TOKEN_BYTES, Drive, World, arrive, drive, only_job

from kvtier.prefetch import events as ev
from kvtier.prefetch.events import FailReason
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.view import Extent, Path, Place

TOKENS = 40 * PAGE
PAGE_BYTES = int(PAGE * TOKEN_BYTES)
LIMIT = 100 * PAGE_BYTES
FROM_N2 = Path("n2", "n1")


def asked(run: Drive, max_bytes: int) -> Job:
    handle = run.planner.new_job()
    run.tell(ev.Asked(handle, "t", deadline_ms=60_000.0, max_bytes=max_bytes))
    job = run.planner.job(handle)
    assert job is not None
    return job


def remote(**params: object) -> Drive:
    run = drive(World(), **params)
    run.world.remote("t", TOKENS)
    return run


def test_what_nobody_knows_the_size_of_is_not_bounded_by_a_guess() -> None:
    run = remote()
    run.world.sized = False
    job = asked(run, LIMIT)
    assert (job.state, job.reason) == (JobState.FAILED, FailReason.NO_SIZE)
    assert asked(run, 0).state is JobState.FETCHING, "there is nothing to be kept to"
    assert not next(iter(run.stages.values())).max_bytes


def test_what_is_there_already_needs_no_size() -> None:
    run = remote()
    run.world.sized = False
    run.world.extents["t"] = (Extent(0, TOKENS, (Place("n1", run.world.extents["t"][0].places[0].tier),)),)
    assert asked(run, 1).state is JobState.READY


def test_the_bound_is_parted_among_the_transfers() -> None:
    run = remote(chunk_bytes=15 * PAGE_BYTES)
    job = asked(run, LIMIT)
    bounds = []
    while job.fetching:
        bounds += [stage.max_bytes for stage in run.stages.values()]
        arrive(run)
        run.now_ms += 1_000.0
        run.tell(ev.Tick())
    assert bounds == [LIMIT * 15 // 40, LIMIT * 15 // 40, LIMIT * 10 // 40]


def test_pages_that_weigh_more_are_counted_as_they_come() -> None:
    run = remote()
    job = asked(run, LIMIT)
    move, stage = run.stages.popitem()
    assert (stage.size_bytes, stage.max_bytes) == (40 * PAGE_BYTES, LIMIT)
    run.tell(ev.MoveFailed(move, FailReason.NO_ROOM, LIMIT, 33 * PAGE))
    assert (job.state, job.held_tokens, job.moved_bytes) == (JobState.READY, 33 * PAGE, LIMIT)


def test_what_was_moved_before_a_link_was_given_up_counts() -> None:
    run = remote()
    asked(run, LIMIT)
    ((move, _),) = run.stages.items()
    run.tell(ev.Progressed(move, 30 * PAGE_BYTES))
    run.tell(ev.DemandWaits(FROM_N2))
    run.now_ms += 1_000.0
    run.tell(ev.Tick())
    (again,) = run.stages.values()
    assert (again.tokens, again.max_bytes) == (TOKENS, LIMIT - 30 * PAGE_BYTES)


def test_what_another_source_has_moved_counts() -> None:
    run = remote()
    places = run.world.extents["t"][0].places
    run.world.extents["t"] = (Extent(0, TOKENS, (*places, Place("n3", places[0].tier))),)
    job = asked(run, 40 * PAGE_BYTES)
    move, _ = run.stages.popitem()
    run.tell(ev.MoveFailed(move, FailReason.TRANSFER, 40 * PAGE_BYTES, 20 * PAGE))
    run.now_ms += 1_000.0
    run.tell(ev.Tick())
    move, again = run.stages.popitem()
    assert again.max_bytes == 0, "nothing is left of it, which is no licence"
    run.tell(ev.MoveFailed(move, FailReason.NO_ROOM, 0, 20 * PAGE))
    assert (only_job(run), job.state, job.held_tokens) == (job, JobState.READY, 20 * PAGE)
