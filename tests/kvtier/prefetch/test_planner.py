"""The planner, scene by scene: triggers, revisions, ends."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
from prefetch_world import Drive, World, arrive, drive, only_job

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.destination import Forecast
from kvtier.prefetch.events import FailReason, GoneReason, Trigger
from kvtier.prefetch.job import FOLLOWERS, IllegalStep, Job, JobState
from kvtier.prefetch.moves import CancelMove, Hold, Release, Stage
from kvtier.prefetch.params import Mode
from kvtier.prefetch.view import Extent, Path, Place

W1, W2, W3 = WorkerKey("w1"), WorkerKey("w2"), WorkerKey("w3")
TOKENS = 1_600  # 1.6 MB, 800 ms of compute


def idle(run: Drive, thread: str = "t", *, ms: float = 200.0, tool: str = "bash") -> None:
    run.tell(ev.Ended(thread, W2, tool, "cli"))
    run.now_ms += ms
    run.tell(ev.Tick())


def test_a_tool_s_return_is_prepared_leased_and_used() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    job = only_job(run)
    assert (job.state, job.trigger, job.worker) == (JobState.FETCHING, Trigger.TOOL_CALL, W1)
    (stage,) = run.stages.values()
    assert (stage.path, stage.start, stage.tokens) == (Path("n2", "n1"), 0, TOKENS)
    assert stage.bytes_per_ms == 5_000  # half of what demand leaves
    arrive(run)
    assert job.state.value == "ready"
    assert run.holds[job.id].tokens == TOKENS
    run.now_ms += 3_000
    run.tell(ev.Sent("t", W1))
    assert job.id in run.holds
    run.tell(ev.Served("t", W1, restored_tokens=TOKENS))
    assert job.state.value == "consumed"
    assert not run.holds
    tally = run.planner.tallies[Trigger.TOOL_CALL]
    assert (tally.planned_bytes, tally.moved_bytes, tally.useful_bytes, tally.wasted_bytes) == (1_600_000,) * 3 + (0,)
    assert tally.saved_ms == pytest.approx(800, rel=0.1)


def test_people_who_may_be_away_for_long_are_not_prepared_for() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run, tool="")
    assert not run.log
    assert run.planner.next_ms == run.planner.params.lost_after_ms


def test_threads_that_stay_away_teach_that_such_threads_do() -> None:
    run = drive()
    before = run.planner.model.survival("new", "bash", "cli").within(1_000.0, 120_000.0)
    for number in range(30):
        run.tell(ev.Ended(f"t{number}", W2, "bash", "cli"))
    run.now_ms = 10_000_000.0
    run.tell(ev.Tick())
    assert run.planner.watched_threads == 0
    assert run.planner.model.survival("new", "bash", "cli").within(1_000.0, 120_000.0) < before / 2


def test_a_thread_that_idled_from_an_odd_instant_is_lost_in_time() -> None:
    """Its timer rings at the sum of two floats, whose difference from the first may be less than the second."""
    run = drive()
    run.now_ms = 788723.562
    lost_ms = run.planner.params.lost_after_ms
    assert (run.now_ms + lost_ms) - run.now_ms < lost_ms
    run.tell(ev.Ended("t", W2, "", "cli"))
    for _ in range(20):
        if run.planner.next_ms is None:
            break
        run.now_ms = run.planner.next_ms
        run.tell(ev.Tick())
    assert run.planner.watched_threads == 0


def test_a_tool_that_takes_long_is_prepared_for_late() -> None:
    """The timer is set for the first instant at which a return within the lease is likely, not polled for."""
    run = drive(hold_ms=40_000.0)
    run.world.remote("t", TOKENS)
    for i in range(50):
        run.planner.model.returned(f"o{i}", "build", "cli", 120_000.0)
    run.tell(ev.Ended("t", W2, "build", "cli"))
    due = run.planner.next_ms
    assert due is not None
    assert 60_000 < due < 120_000
    assert run.world.asked == 0
    run.now_ms = due
    run.tell(ev.Tick())
    assert run.stages


def test_a_tool_call_in_the_stream_starts_before_the_reply_ends() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.tell(ev.Sent("t", W2))
    run.tell(ev.ToolClosed("t", W2, "bash", "cli"))
    run.now_ms += 150
    run.tell(ev.Tick())
    assert only_job(run).trigger is Trigger.TOOL_CALL
    run.tell(ev.Ended("t", W2, "bash", "cli"))
    assert only_job(run).state is JobState.FETCHING


def test_kv_that_lies_where_it_is_needed_is_left_alone_until_something_changes() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.world.extents["t"] = (Extent(0, TOKENS, (Place("n1", 3),)),)  # type: ignore[arg-type]
    idle(run)
    assert run.world.asked == 1
    for _ in range(4):
        run.now_ms = run.planner.next_ms or run.now_ms
        run.tell(ev.Tick())
    assert run.world.asked == 1
    run.world.remote("t", TOKENS)
    run.world.change += 1
    run.tell(ev.Ended("t", W2, "bash", "cli"))
    run.now_ms = run.planner.next_ms or run.now_ms
    run.tell(ev.Tick())
    assert run.stages


def test_the_turn_that_comes_early_finds_what_has_arrived() -> None:
    run = drive(chunk_bytes=800_000, link_inflight_bytes=800_000)
    run.world.remote("t", TOKENS)
    idle(run)
    job = only_job(run)
    arrive(run)
    run.now_ms += 1_000
    run.tell(ev.Tick())
    assert len(run.stages) == 1
    moves = run.tell(ev.Sent("t", W1))
    assert [type(move) for move in moves] == [CancelMove, Hold]
    assert (job.state, job.held_tokens) == (JobState.READY, 800)
    run.tell(ev.Served("t", W1))
    tally = run.planner.tallies[Trigger.TOOL_CALL]
    assert (tally.useful_bytes, tally.late_bytes) == (800_000, 800_000)


def test_the_rest_still_comes_while_the_turn_queues() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    run.world.queue_ms["1"] = 5_000.0
    assert run.tell(ev.Sent("t", W1)) == []
    arrive(run)
    assert only_job(run).state is JobState.READY


def test_a_plan_is_revised_when_the_router_chooses_otherwise() -> None:
    run = drive()
    run.world.remote("t", TOKENS, "n3")
    idle(run)
    job = only_job(run)
    arrive(run)
    run.world.queue_ms["2"] = 5_000.0
    moves = run.tell(ev.Sent("t", W2))
    assert job.state is JobState.CANCELLED
    assert Release(job.id) in moves
    new = only_job(run)
    assert (new.trigger, new.worker) == (Trigger.DECISION, W2)
    assert {stage.path for stage in run.stages.values()} == {Path("n3", "n2")}
    assert run.planner.tallies[Trigger.TOOL_CALL].wasted_bytes == 1_600_000


def test_a_decision_fetches_only_what_the_queue_hides() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.world.queue_ms["1"] = 200.0  # 1.6 MB at half of 10 kB/ms take 320
    assert run.tell(ev.Sent("t", W1)) == []
    run.world.queue_ms["1"] = 400.0
    run.tell(ev.Sent("t", W1))
    job = only_job(run)
    assert (job.trigger, job.deadline_ms) == (Trigger.DECISION, 400.0)
    arrive(run)
    run.tell(ev.Served("t", W1))
    assert job.state is JobState.CONSUMED


@pytest.mark.parametrize("reason", GoneReason)
def test_a_thread_that_does_not_come_back_takes_its_job_with_it(reason: GoneReason) -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    job = only_job(run)
    run.tell(ev.Gone("t", reason))
    assert job.state is JobState.CANCELLED
    assert not run.stages
    assert run.planner.next_ms is None
    assert run.planner.watched_threads == 0


def test_what_nobody_used_expires() -> None:
    run = drive(hold_ms=10_000.0, min_probability=0.5)
    run.world.remote("t", TOKENS)
    idle(run)
    arrive(run)
    job = only_job(run)
    run.now_ms = run.planner.next_ms or 0.0
    moves = run.tell(ev.Tick())
    assert job.state is JobState.EXPIRED
    assert moves == [Release(job.id)]
    tally = run.planner.tallies[Trigger.TOOL_CALL]
    assert tally.wasted_bytes == 1_600_000
    assert run.planner.next_ms == run.planner.params.lost_after_ms  # once was enough for this gap


def come_back(run: Drive, thread: str, to: WorkerKey) -> None:
    """The thread's tool is done, and its turn is placed on `to`."""
    idle(run, thread)
    run.now_ms += 1_000
    run.tell(ev.Sent(thread, to))
    run.tell(ev.Served(thread, to))
    run.stages.clear()


def test_nothing_is_staged_where_turns_of_such_a_margin_went_elsewhere() -> None:
    """The tie breaks the other way by the time that the turn comes: learned by counting, staged or not."""
    run = drive(World(margin_ms=100.0))
    for number in range(20):
        run.world.remote(f"t{number}", TOKENS)
        come_back(run, f"t{number}", W3)
    run.log.clear()
    run.world.remote("t", TOKENS)
    idle(run)
    assert not run.log
    assert run.planner.destinations.odds("", 100.0 + 800.0, moves=True) < 0.75


def test_a_margin_at_which_turns_went_where_they_should_is_trusted() -> None:
    run = drive(World(margin_ms=100.0))
    for number in range(20):
        run.world.remote(f"t{number}", TOKENS)
        come_back(run, f"t{number}", W1)
    assert run.planner.destinations.odds("", 100.0, moves=True) > 0.85
    for _ in range(20):  # what is staged makes the node cheaper still: that margin has to prove itself, too
        run.planner.destinations.settled(Forecast(W1, "n1", "", True, 900.0), right=True)
    run.world.remote("t", TOKENS)
    idle(run)
    assert only_job(run).worker == W1


def test_a_forecast_says_nothing_of_a_thread_that_stays_away_for_long() -> None:
    run = drive(World(margin_ms=100.0), hold_ms=10_000.0, min_probability=0.6)
    before = run.planner.destinations.odds("", 100.0, moves=True)
    for away_ms, after in ((11_000, before), (1_000, 0.8 * before)):
        run.world.remote("t", TOKENS)
        idle(run)
        assert not run.stages
        run.now_ms += away_ms
        run.tell(ev.Sent("t", W3))
        assert run.planner.destinations.odds("", 100.0, moves=True) == pytest.approx(after)


def test_a_thread_without_an_alternative_is_staged_at_once() -> None:
    run = drive(World(margin_ms=inf))
    run.world.remote("t", TOKENS)
    idle(run)
    assert run.stages


def test_where_the_engine_reads_other_nodes_itself_only_the_difference_counts() -> None:
    world = World(reads_remote=True, link_bytes_per_ms=50_000.0)  # 1.6 MB: 32 ms from there, 27 from here
    world.remote("t", TOKENS)
    run = drive(world)
    idle(run)
    assert not run.log
    world.link_bytes_per_ms = 1_000.0
    world.remote("u", TOKENS)
    idle(run, "u")
    assert only_job(run).subject == "u"


def test_an_engine_that_reads_other_nodes_is_warmed_without_staging() -> None:
    world = World(reads_remote=True, link_bytes_per_ms=50_000.0, warmable=True)
    world.remote("t", TOKENS)
    run = drive(world)
    idle(run)
    assert not run.stages
    assert [warm.tokens for warm in run.warms.values()] == [TOKENS]
    assert only_job(run).state is JobState.READY


def test_an_explicit_call_runs_to_its_deadline() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    handle = run.planner.new_job()
    run.tell(ev.Asked(handle, "t", deadline_ms=1_000.0))
    assert only_job(run).state is JobState.FETCHING
    run.now_ms = 1_000.0
    run.tell(ev.Tick())
    job = run.planner.job(handle)
    assert job is not None
    assert job.state is JobState.EXPIRED
    assert not run.stages


def test_an_explicit_call_moves_no_more_than_it_may() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=1_000.0, max_bytes=500_000))
    (stage,) = run.stages.values()
    assert (stage.tokens, stage.size_bytes) == (496, 496_000)  # whole pages
    arrive(run)
    assert only_job(run).held_tokens == 496


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda world: None, FailReason.NO_WORKER),
        (lambda world: world.remote("t", TOKENS) or setattr(world, "stage_bytes", 15_999), FailReason.NO_ROOM),
        (lambda world: world.remote("t", TOKENS) or world.lost.add("n2"), FailReason.NO_COPY),
    ],
)
def test_an_explicit_call_that_cannot_be_served_fails_with_its_reason(prepare: object, reason: FailReason) -> None:
    run = drive()
    prepare(run.world)  # type: ignore[operator]
    handle = run.planner.new_job()
    run.tell(ev.Asked(handle, "t", deadline_ms=1_000.0))
    job = run.planner.job(handle)
    assert job is not None
    assert (job.state, job.reason) == (JobState.FAILED, reason)


def test_the_earliest_deadline_goes_first_and_priority_before_it() -> None:
    run = drive()
    run.world.waiting.add(Path("n2", "n1"))
    for name, deadline, priority in (("late", 9_000.0, 0), ("soon", 5_000.0, 0), ("vip", 20_000.0, 1)):
        run.world.remote(name, TOKENS)
        run.tell(ev.Asked(run.planner.new_job(), name, deadline, priority=priority))
    assert not run.stages
    run.world.waiting.clear()
    order = []
    for _ in range(3):
        run.now_ms = max(run.planner.next_ms or 0.0, run.now_ms)
        order += [move.subject for move in run.tell(ev.Tick()) if isinstance(move, Stage)]
        arrive(run)
        order += [move.subject for move in run.log if isinstance(move, Stage) and move.subject not in order]
    assert order == ["vip", "soon", "late"]


def test_a_dead_agent_fails_what_was_for_it() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    job = only_job(run)
    run.tell(ev.NodeLost("n1"))
    assert (job.state, job.reason) == (JobState.FAILED, FailReason.NODE_LOST)
    assert not run.stages


def test_a_dead_source_is_replaced_by_another_copy() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.world.extents["t"] = (Extent(0, TOKENS, (Place("n2", 3), Place("n3", 3))),)  # type: ignore[arg-type]
    idle(run)
    run.tell(ev.NodeLost("n2"))
    assert [stage.path for stage in run.stages.values()] == [Path("n3", "n1")]


def test_an_evicted_source_leaves_what_came_before() -> None:
    run = drive(chunk_bytes=800_000, link_inflight_bytes=800_000)
    run.world.remote("t", TOKENS)
    idle(run)
    job = only_job(run)
    arrive(run)
    run.now_ms += 1_000
    run.tell(ev.Tick())
    (move,) = run.stages
    del run.stages[move]
    run.tell(ev.MoveFailed(move, FailReason.NO_COPY))
    assert (job.state, job.held_tokens) == (JobState.READY, 800)


def test_demand_takes_the_link_back() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    path = Path("n2", "n1")
    run.world.waiting.add(path)
    run.tell(ev.DemandWaits(path))
    assert not run.stages
    assert only_job(run).state is JobState.FETCHING
    run.world.waiting.clear()
    while not run.stages:
        run.now_ms = run.planner.next_ms or 0.0
        run.tell(ev.Tick())
    arrive(run)
    assert only_job(run).state is JobState.READY


def test_the_lease_of_a_turn_that_comes_at_the_last_moment_outlasts_its_wait() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    run.tell(ev.Asked(run.planner.new_job(), "t", deadline_ms=60_000.0))
    arrive(run)
    job, held_ms = only_job(run), run.now_ms
    run.now_ms = job.expires_ms - 1.0
    run.tell(ev.Sent("t", W1))
    assert run.now_ms < job.expires_ms <= held_ms + run.holds[job.id].ttl_ms


def test_the_threads_of_a_draining_worker_move_hottest_first() -> None:
    run = drive(drain_threads=2)
    for name, tool in (("person", ""), ("tool", "bash"), ("running", "bash")):
        run.world.remote(name, TOKENS)
        run.tell(ev.Ended(name, W2, tool, "cli"))
    run.tell(ev.Ended("elsewhere", W3, "bash", "cli"))
    run.world.remote("elsewhere", TOKENS)
    run.tell(ev.Sent("running", W2))
    run.tell(ev.Drained(W2))
    jobs = {job.subject: job.trigger for job in run.planner.board.active.values()}
    assert jobs == dict.fromkeys(("tool", "running"), Trigger.DRAIN)


def test_a_few_threads_of_a_draining_worker_are_weighed_at_a_time() -> None:
    run = drive()
    threads = [f"t{number}" for number in range(40)]
    for thread in threads:
        run.world.remote(thread, TOKENS, "n2")
        run.tell(ev.Ended(thread, W2, "bash", "cli"))
    run.tell(ev.Sent("t7", W1))
    run.world.asked = 0
    run.tell(ev.Drained(W2))
    assert 0 < run.world.asked <= 16
    run.tell(ev.Sent("t39", W1))  # it has left by itself
    while run.now_ms < 10.0 and run.planner.next_ms is not None:
        run.now_ms, run.world.asked = run.planner.next_ms, 0
        run.tell(ev.Tick())
        assert run.world.asked <= 16
    moved = {job.subject for job in run.planner.board.active.values() if job.trigger is Trigger.DRAIN}
    assert moved == set(threads) - {"t7", "t39"}


def test_what_was_on_its_way_to_a_draining_worker_goes_elsewhere() -> None:
    run = drive()
    run.world.remote("t", TOKENS, "n3")
    idle(run)
    before = only_job(run)
    run.world.chosen["t"] = "2"
    run.tell(ev.Drained(W1))
    assert before.state is JobState.CANCELLED
    job = only_job(run)
    assert (job.trigger, job.worker) == (Trigger.DRAIN, W2)
    assert {stage.path for stage in run.stages.values()} == {Path("n3", "n2")}


def test_a_turn_that_queues_for_long_finds_its_lease_counted() -> None:
    run = drive(hold_ms=10_000.0, min_probability=0.5)
    run.world.remote("t", TOKENS)
    idle(run)
    arrive(run)
    job = only_job(run)
    run.now_ms += 9_000
    run.tell(ev.Sent("t", W1))
    run.now_ms += 9_000
    run.tell(ev.Tick())
    run.tell(ev.Served("t", W1))
    assert job.state is JobState.CONSUMED


def test_a_new_worker_gets_the_threads_that_will_be_sent_there() -> None:
    run = drive()
    for name, to in (("here", "1"), ("there", "3")):
        run.world.remote(name, TOKENS, to=to)
        run.tell(ev.Ended(name, W2, "bash", "cli"))
    run.tell(ev.ScaledOut(W3))
    assert {job.subject: job.trigger for job in run.planner.board.active.values()} == {"there": Trigger.SCALE_OUT}


def test_a_session_that_lives_again_is_prepared_for_at_once() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run, tool="", ms=400_000.0)
    assert not run.stages
    run.tell(ev.Resumed("t"))
    assert only_job(run).trigger is Trigger.RESUME


def test_the_kill_switch_takes_everything_back() -> None:
    run = drive()
    run.world.remote("t", TOKENS)
    idle(run)
    off = msgspec.structs.replace(run.planner.params, mode=Mode.OFF)
    run.take(run.planner.replace(off, run.now_ms))
    assert not run.stages
    assert not run.planner.active_jobs
    handle = run.planner.new_job()
    run.tell(ev.Asked(handle, "t", 1e9))
    job = run.planner.job(handle)
    assert job is not None
    assert job.reason is FailReason.DISABLED


def test_a_dry_run_counts_and_moves_nothing() -> None:
    run = drive(mode=Mode.DRY_RUN)
    run.world.remote("t", TOKENS)
    idle(run)
    assert not run.log
    tally = run.planner.tallies[Trigger.TOOL_CALL]
    assert (tally.dry_jobs, tally.dry_bytes) == (1, 1_600_000)


def test_a_trigger_that_is_left_out_does_nothing() -> None:
    run = drive(triggers=frozenset(Trigger) - {Trigger.TOOL_CALL})
    run.world.remote("t", TOKENS)
    idle(run)
    assert not run.log
    assert run.planner.next_ms == run.planner.params.lost_after_ms


def test_harm_above_the_benefit_forbids_it() -> None:
    run = drive(World(free_bytes=0, harm=0.001))
    run.world.remote("t", TOKENS)
    idle(run)
    assert not run.log


@pytest.mark.parametrize("state", JobState)
def test_only_what_the_table_says_may_follow(state: JobState) -> None:
    for following in JobState:
        job = Job(1, "t", Trigger.EXPLICIT, W1, "n1", 0.0, 0.0, state=state)
        if following in FOLLOWERS[state]:
            job.advance(following)
            assert job.state is following
        else:
            with pytest.raises(IllegalStep):
                job.advance(following)
