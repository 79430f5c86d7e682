"""Whatever happens, in any order: budgets hold, demand goes first, leases end, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prefetch_world import PAGE, Drive, World

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import FailReason, GoneReason, Trigger
from kvtier.prefetch.job import Job, JobState, Order
from kvtier.prefetch.moves import Hold, Release, Stage
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, Path, Place

PARAMS = PrefetchParams(
    chunk_bytes=64_000,
    link_inflight_bytes=100_000,
    node_inflight_bytes=150_000,
    node_held_bytes=500_000,
    hold_ms=5_000.0,
    warm_window_tokens=64,
    min_probability=0.3,
    warm_min_probability=0.2,
    first_check_ms=10.0,
    max_jobs=4,
    max_threads=5,
    recall_turns=2,
    recall_after_ms=50.0,
    recall_tokens=PAGE,
)
NODES = ("n1", "n2", "n3")
SUBJECTS = tuple(f"t{i}" for i in range(6))
subjects = st.sampled_from((*SUBJECTS, "unknown"))
numbers = st.sampled_from("1234")  # the last on the node of the first
paths = st.builds(Path, st.sampled_from(NODES), st.sampled_from(NODES))
extents = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.lists(st.builds(Place, st.sampled_from(NODES), st.sampled_from([Tier.L3, Tier.L4])), max_size=3, unique=True),
        st.sampled_from([None, None, Tier.L1, Tier.L2]),
    ),
    min_size=1,
    max_size=4,
)


class PlannerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(warmable=True, node_of={"4": "n1"})
        self.planner = Planner(PARAMS)
        self.drive = Drive(self.planner, self.world)
        self.ended: dict[int, JobState] = {}
        for number, subject in enumerate(SUBJECTS):
            self.world.remote(subject, (number + 1) * 5 * PAGE, NODES[number % 3], to="123"[(number + 1) % 3])

    def tell(self, event: ev.Event) -> None:
        before = set(self.drive.stages)
        waiting = set(self.world.waiting)
        moves = self.drive.tell(event)
        for move in moves:
            if isinstance(move, Stage):
                assert move.path not in waiting
                assert move.move not in before
                assert 0 < move.bytes_per_ms <= PARAMS.link_share * self.world.link_bytes_per_ms
                spare = self.world.link_bytes_per_ms - self.world.demand.get(move.path, 0.0)
                assert move.bytes_per_ms <= PARAMS.link_share * spare + 1e-6
                assert move.tokens % PAGE == 0

    @rule(subject=subjects, parts=extents, number=numbers)
    def lies(self, subject: str, parts: list[tuple[int, list[Place], Tier | None]], number: str) -> None:
        made, start = [], 0
        for pages, places, engine in parts:
            made.append(Extent(start, pages * PAGE, tuple(places), engine))
            start += pages * PAGE
        self.world.extents[subject] = tuple(made)
        self.world.prompts[subject] = start + 10
        self.world.chosen[subject] = number
        self.world.change += 1

    @rule(subject=subjects, number=numbers, ms=st.sampled_from([20.0, 200.0, 2_000.0]))
    def idles(self, subject: str, number: str, ms: float) -> None:
        """The usual way to a job: a reply ends and time passes."""
        self.tell(ev.Ended(subject, WorkerKey(f"w{number}"), "bash", "cli"))
        self.drive.now_ms += ms
        self.tell(ev.Tick())

    @precondition(lambda self: self.drive.stages or self.drive.warms)
    @rule()
    def everything_arrives(self) -> None:
        for move in sorted((*self.drive.stages, *self.drive.warms)):
            told = self.drive.stages.pop(move, None) or self.drive.warms.pop(move, None)
            if told is not None:
                self.tell(ev.MoveEnded(move, told.size_bytes))

    @precondition(lambda self: self.planner.board.active)
    @rule(data=st.data(), serve=st.booleans())
    def turn_comes(self, data: st.DataObject, serve: bool) -> None:
        job = self.planner.board.active[data.draw(st.sampled_from(sorted(self.planner.board.active)))]
        self.tell(ev.Sent(job.subject, job.worker))
        if serve:
            self.tell(ev.Served(job.subject, job.worker))

    @precondition(lambda self: self.planner.board.active)
    @rule(data=st.data())
    def turn_goes_elsewhere(self, data: st.DataObject) -> None:
        """The plan is revised: nothing of the old one is left."""
        job = self.planner.board.active[data.draw(st.sampled_from(sorted(self.planner.board.active)))]
        elsewhere = next(number for number in "123" if f"n{number}" != job.node)
        if job.subject in self.world.extents:
            self.tell(ev.Sent(job.subject, WorkerKey(f"w{elsewhere}")))
            assert job.ended
            assert job.id not in self.drive.holds
            assert job.id not in {move.job for move in (*self.drive.stages.values(), *self.drive.warms.values())}

    @precondition(lambda self: self.drive.stages)
    @rule(data=st.data())
    def demand_comes(self, data: st.DataObject) -> None:
        """Where a move is under way."""
        path = self.drive.stages[data.draw(st.sampled_from(sorted(self.drive.stages)))].path
        self.world.waiting.add(path)
        self.tell(ev.DemandWaits(path))
        assert not [move for move in self.drive.stages.values() if move.path == path]

    @rule(subject=subjects, number=numbers, tool=st.sampled_from(["", "bash", "edit"]))
    def ends(self, subject: str, number: str, tool: str) -> None:
        self.tell(ev.Ended(subject, WorkerKey(f"w{number}"), tool, "cli"))

    @rule(subject=subjects, number=numbers)
    def tool_closes(self, subject: str, number: str) -> None:
        self.tell(ev.ToolClosed(subject, WorkerKey(f"w{number}"), "bash", "cli"))

    @rule(subject=subjects, number=numbers)
    def sends(self, subject: str, number: str) -> None:
        self.tell(ev.Sent(subject, WorkerKey(f"w{number}"), "cli"))

    @rule(subject=subjects, number=numbers, full=st.booleans())
    def holds_back(self, subject: str, number: str, full: bool) -> None:
        self.tell(ev.Held(subject, WorkerKey(f"w{number}"), "cli", full))

    @rule(subject=subjects)
    def prefills(self, subject: str) -> None:
        self.tell(ev.Prefilled(subject))

    @rule(subject=subjects, number=numbers, restored=st.none() | st.integers(0, 2000))
    def serves(self, subject: str, number: str, restored: int | None) -> None:
        self.tell(ev.Served(subject, WorkerKey(f"w{number}"), restored))

    @rule(
        subject=subjects,
        number=st.none() | numbers,
        within=st.floats(1, 20_000),
        priority=st.integers(0, 2),
        limit=st.sampled_from([0, 10_000, 100_000]),
    )
    def asks(self, subject: str, number: str | None, within: float, priority: int, limit: int) -> None:
        job = self.planner.new_job()
        worker = None if number is None else WorkerKey(f"w{number}")
        self.tell(ev.Asked(job, subject, self.drive.now_ms + within, worker, priority, limit))
        assert self.planner.job(job) is not None

    @rule(subject=subjects, thread=subjects)
    def claims(self, subject: str, thread: str) -> None:
        """A prompt that was named turns out to be a thread's."""
        mine, theirs = self.planner.board.of_subject(subject), self.planner.board.of_subject(thread)
        self.tell(ev.Claimed(subject, thread))
        if mine is not None and mine is not theirs:
            assert theirs is None or theirs.state is JobState.CANCELLED
            assert mine.ended or (self.planner.board.of_subject(thread) is mine and mine.subject == thread)

    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        jobs = sorted(self.planner.board.active)
        if jobs:
            job = data.draw(st.sampled_from(jobs))
            self.tell(ev.CancelJob(job))
            found = self.planner.job(job)
            assert found is not None
            assert found.state is JobState.CANCELLED

    @rule(subject=subjects, reason=st.sampled_from(GoneReason))
    def goes(self, subject: str, reason: GoneReason) -> None:
        self.tell(ev.Gone(subject, reason))

    @rule(subject=subjects)
    def resumes(self, subject: str) -> None:
        self.tell(ev.Resumed(subject))

    @rule(number=numbers, out=st.booleans())
    def fleet_changes(self, number: str, out: bool) -> None:
        worker = WorkerKey(f"w{number}")
        self.tell(ev.ScaledOut(worker) if out else ev.Drained(worker))

    @precondition(lambda self: self.drive.stages or self.drive.warms)
    @rule(data=st.data(), share=st.floats(-1, 2))
    def move_ends(self, data: st.DataObject, share: float) -> None:
        move = data.draw(st.sampled_from(sorted((*self.drive.stages, *self.drive.warms))))
        told = self.drive.stages.pop(move, None) or self.drive.warms.pop(move)
        self.tell(ev.MoveEnded(move, int(told.size_bytes * share)))

    @precondition(lambda self: self.drive.stages or self.drive.warms)
    @rule(data=st.data(), reason=st.sampled_from([FailReason.NO_COPY, FailReason.TRANSFER, FailReason.NO_ROOM]))
    def move_fails(self, data: st.DataObject, reason: FailReason) -> None:
        move = data.draw(st.sampled_from(sorted((*self.drive.stages, *self.drive.warms))))
        self.drive.stages.pop(move, None)
        self.drive.warms.pop(move, None)
        self.tell(ev.MoveFailed(move, reason, 100))

    @precondition(lambda self: self.drive.stages)
    @rule(data=st.data(), share=st.floats(0, 1))
    def move_goes_on(self, data: st.DataObject, share: float) -> None:
        move = data.draw(st.sampled_from(sorted(self.drive.stages)))
        self.tell(ev.Progressed(move, int(self.drive.stages[move].size_bytes * share)))

    @rule(node=st.sampled_from(NODES))
    def node_dies(self, node: str) -> None:
        self.world.lost.add(node)
        self.tell(ev.NodeLost(node))
        assert not [job for job in self.planner.board.active.values() if job.node == node and job.state is not JobState.READY]
        assert not [move for move in self.drive.stages.values() if node in move.path]

    @rule(node=st.sampled_from(NODES))
    def node_returns(self, node: str) -> None:
        self.world.lost.discard(node)

    @rule(number=numbers)
    def engine_restarts(self, number: str) -> None:
        worker = WorkerKey(f"w{number}")
        self.drive.warms = {move: warm for move, warm in self.drive.warms.items() if warm.worker != worker}
        self.tell(ev.EngineRestarted(worker))

    @rule(path=paths, waits=st.booleans(), used=st.floats(0, 12_000))
    def demand_changes(self, path: Path, waits: bool, used: float) -> None:
        self.world.demand[path] = used
        self.world.waiting.discard(path)
        if waits:
            self.world.waiting.add(path)
            self.tell(ev.DemandWaits(path))
            assert not [move for move in self.drive.stages.values() if move.path == path]

    @rule(margin=st.sampled_from([-90.0, 0.0, 3_000.0, inf]), reads_remote=st.booleans())
    def candidates_part(self, margin: float, reads_remote: bool) -> None:
        self.world.margin_ms, self.world.reads_remote = margin, reads_remote

    @rule(number=numbers, queue_ms=st.sampled_from([0.0, 50.0, 500.0, 50_000.0]))
    def queue_changes(self, number: str, queue_ms: float) -> None:
        self.world.queue_ms[number] = queue_ms

    @rule(ms=st.sampled_from([0.0, 5.0, 20.0, 100.0, 500.0, 60_000.0]))
    def time_passes(self, ms: float) -> None:
        self.drive.now_ms += ms
        self.tell(ev.Tick())
        following = self.planner.next_ms
        assert following is None or following > self.drive.now_ms

    @rule(mode=st.sampled_from([Mode.ON] * 8 + [Mode.OFF, Mode.DRY_RUN]))
    def switched(self, mode: Mode) -> None:
        self.drive.take(self.planner.replace(_with_mode(mode), self.drive.now_ms))
        if mode is not Mode.ON:
            assert not self.drive.stages
            assert not self.drive.holds

    @invariant()
    def budgets_hold(self) -> None:
        links: Counter[Path] = Counter()
        nodes: Counter[str] = Counter()
        for move in self.drive.stages.values():
            links[move.path] += move.size_bytes
            for node in set(move.path):
                nodes[node] += move.size_bytes
        assert all(size <= PARAMS.link_inflight_bytes for size in links.values())
        assert all(size <= PARAMS.node_inflight_bytes for size in nodes.values())
        budgets = self.planner.board.budgets
        for node in NODES:
            reserved = sum(job.reserved_bytes for job in self.planner.board.active.values() if job.node == node)
            assert budgets.held(node) == reserved <= PARAMS.node_held_bytes
            assert budgets.node_inflight(node) == nodes[node]
        assert len(self.planner.board.active) <= PARAMS.max_jobs
        assert self.planner.watched_threads <= PARAMS.max_threads

    @invariant()
    def leases_are_of_ready_jobs(self) -> None:
        ready = {job.id for job in self.planner.board.active.values() if job.state is JobState.READY}
        assert set(self.drive.holds) == ready
        for hold in self.drive.holds.values():
            job = self.planner.job(hold.job)
            assert job is not None
            assert hold.node == job.node

    @invariant()
    def moves_belong_to_running_jobs(self) -> None:
        jobs = self.planner.board.active
        assert all(stage.job in jobs for stage in self.drive.stages.values())
        assert all(warm.job in jobs for warm in self.drive.warms.values())
        assert all(jobs[move.job].state is JobState.FETCHING for move in self.drive.stages.values())
        idle = (warm.worker for warm in self.drive.warms.values() if not jobs[warm.job].sent)
        assert all(count == 1 for count in Counter(idle).values())

    @invariant()
    def links_are_waited_for_in_order(self) -> None:
        first: dict[Path, Order] = {}
        for job in self.planner.board.active.values():
            for copy in job.pending:
                first[copy.path] = min(first.get(copy.path, job.order), job.order)
        assert dict(self.planner.board.waiting.first()) == first

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """Every job is looked at when it expires or may be warmed."""
        jobs = self.planner.board.active.values()
        due = [job.expires_ms for job in jobs]
        due += [
            max(job.warm_at_ms, self.drive.now_ms)
            for job in jobs
            if job.state is JobState.READY and job.warm_at_ms is not None and job.warm_move is None
            if job.warmed_tokens < job.warm_tokens
        ]
        following = self.planner.next_ms
        assert not due or (following is not None and following <= min(due))

    @invariant()
    def ends_are_final_and_counted(self) -> None:
        for job_id, state in self.ended.items():
            job = self.planner.job(job_id)
            assert job is not None
            assert job.state is state
        self.ended |= {job.id: job.state for job in self._remembered() if job.ended}
        for tally in self.planner.tallies.values():
            moving = sum(
                job.moved_bytes for job in self.planner.board.active.values() if self.planner.tallies[job.trigger] is tally
            )
            assert tally.useful_bytes + tally.wasted_bytes + moving == tally.moved_bytes
            assert 0 <= tally.warm_wasted_bytes <= tally.warmed_bytes

    def _remembered(self) -> list[Job]:
        return [job for job_id in range(1, self.planner.new_job()) if (job := self.planner.job(job_id)) is not None]

    def teardown(self) -> None:
        """What runs at the end is taken back whole."""
        for job in sorted(self.planner.board.active):
            self.tell(ev.CancelJob(job))
        if not self.planner.board.active:
            assert self.planner.board.budgets.idle
        for job in sorted(self.planner.board.active):  # begun meanwhile
            self.drive.take(self.planner.replace(_with_mode(Mode.OFF), self.drive.now_ms))
            assert self.planner.job(job) is not None
        assert not self.drive.stages
        assert not self.drive.warms
        assert not self.drive.holds
        assert self.planner.board.budgets.idle
        opened = Counter(move.job for move in self.drive.log if isinstance(move, Hold))
        closed = Counter(move.job for move in self.drive.log if isinstance(move, Release))
        assert opened == closed
        assert all(count == 1 for count in opened.values())


def _with_mode(mode: Mode) -> PrefetchParams:
    return PrefetchParams(
        **{name: getattr(PARAMS, name) for name in PARAMS.__struct_fields__ if name != "mode"},
        mode=mode,
    )


def test_every_trigger_has_a_tally() -> None:
    assert set(Planner().tallies) == set(Trigger)


TestPlanner = PlannerMachine.TestCase
TestPlanner.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
