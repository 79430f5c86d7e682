"""All jobs that run: starts their moves within the budgets, in order of priority and deadline, and ends each of them once.

Whatever a job holds (moves in flight, reserved bytes, a lease) is given back in one place, `end`, whichever way it ends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from math import inf

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.budget import Budgets
from kvtier.prefetch.events import FailReason, MoveFailed, Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.layout import Copy
from kvtier.prefetch.moves import CancelMove, Hold, Move, Release, Stage
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.tally import Tally
from kvtier.prefetch.view import Path, View
from kvtier.prefetch.waiting import Waiting

_REMEMBERED = 1024  # ended jobs that can be asked about


class Board:
    """`moves` collects what is to be done until `take_moves`."""

    def __init__(self, params: PrefetchParams) -> None:
        self.params = params
        self.budgets = Budgets(params)
        self.tallies: dict[Trigger, Tally] = {trigger: Tally() for trigger in Trigger}
        self.active: dict[int, Job] = {}
        self.just_ended: list[Job] = []
        self.just_changed: list[Job] = []  # when they next want something
        self.moves: list[Move] = []
        self._ended: OrderedDict[int, Job] = OrderedDict()
        self._by_subject: dict[str, int] = {}
        self._by_move: dict[int, Job] = {}
        self.waiting = Waiting()
        self._progress: dict[int, int] = {}
        self._next_move = 1

    def job(self, job_id: int) -> Job | None:
        return self.active.get(job_id) or self._ended.get(job_id)

    def of_subject(self, subject: str) -> Job | None:
        job_id = self._by_subject.get(subject)
        return None if job_id is None else self.active[job_id]

    def of_move(self, move: int) -> Job | None:
        return self._by_move.get(move)

    def take_moves(self) -> list[Move]:
        moves, self.moves = self.moves, []
        return moves

    def new_move(self, job: Job) -> int:
        move = self._next_move
        self._next_move += 1
        self._by_move[move] = job
        return move

    def open(self, job: Job, copies: Iterable[Copy], ready_tokens: int, now_ms: float, stage_bytes: float = inf) -> None:
        """Take a job in. `copies` are cut down to what may be reserved, to what its node may hold and to its own limit."""
        limit = min(self.budgets.room(job.node), stage_bytes, job.max_bytes or inf)
        job.pending, job.held_tokens = _within(copies, limit, job, ready_tokens)
        if job.max_bytes:
            job.pending = _shared_out(job.pending, job.max_bytes)
        job.planned_bytes = job.reserved_bytes = sum(_size(copy, job) for copy in job.pending)
        self.budgets.reserve(job.node, job.reserved_bytes)
        self.tallies[job.trigger].planned_bytes += job.planned_bytes
        self.active[job.id] = job
        self._by_subject[job.subject] = job.id
        self.waiting.update(job)
        if job.pending:
            return
        if job.held_tokens:
            self._ready(job, now_ms)
        else:
            self.end(job, JobState.FAILED, FailReason.NO_ROOM)

    def hand_on(self, subject: str, thread: str) -> None:
        """What runs for `subject` is for the turn of `thread` that is on its way, in place of what ran for that."""
        job, before = self.of_subject(subject), self.of_subject(thread)
        if job is None or job is before:
            return
        if before is not None:
            self.end(before, JobState.CANCELLED)
        del self._by_subject[subject]
        job.subject, job.sent = thread, True
        self._by_subject[thread] = job.id

    def pump(self, view: View, now_ms: float) -> float | None:
        """Start what may start, at most one chunk a link: of the job that is first there. When to try again; None where nothing
        waits, or only for moves that are under way."""
        again = None
        for job, path in self._next_starts():
            until = self._start(job, path, view, now_ms)
            if until is not None and path in self.waiting:
                again = until if again is None else min(again, until)
        return again

    def progressed(self, move: int, moved_bytes: int) -> None:
        job = self._by_move.get(move)
        if job is not None and move in job.moving:
            self._progress[move] = moved_bytes

    def staged(self, move: int, moved_bytes: int, now_ms: float) -> None:
        job, chunk = self._settle(move, moved_bytes)
        if job is None or chunk is None:
            return
        job.arrived_tokens += chunk.tokens
        if not job.pending and not job.moving:
            self._ready(job, now_ms)

    def stage_failed(self, event: MoveFailed, now_ms: float) -> None:
        """Try the next source, unless there is no room, or do with what has come and what lies before."""
        job, chunk = self._settle(event.move, event.moved_bytes)
        if job is None or chunk is None:
            return
        if chunk.others and event.reason is not FailReason.NO_ROOM:
            job.pending.appendleft(msgspec.structs.replace(chunk, path=chunk.others[0], others=chunk.others[1:]))
            self.waiting.update(job)
            return
        tokens = max(0, min(event.tokens, chunk.tokens))
        job.arrived_tokens += tokens
        self.truncate(job, chunk.start + tokens, event.reason, now_ms)

    def truncate(self, job: Job, tokens: int, reason: FailReason, now_ms: float) -> None:
        """No more than the leading `tokens` will come: ready with these, or failed if that was nothing."""
        job.held_tokens = min(job.held_tokens, tokens)
        job.pending = deque(copy for copy in job.pending if copy.start < tokens)
        self.waiting.update(job)
        for move in [move for move, copy in job.moving.items() if copy.start >= tokens]:
            self._take_back(move)
        if job.pending or job.moving:
            return
        if job.arrived_tokens and job.held_tokens > job.staged_from:
            self._ready(job, now_ms)
        else:
            self.end(job, JobState.FAILED, reason)

    def stop_fetching(self, job: Job, now_ms: float) -> None:
        """The turn is there: what has come is ready, the rest is late."""
        if job.state not in (JobState.QUEUED, JobState.FETCHING):
            return
        first = min((copy.start for copy in (*job.pending, *job.moving.values())), default=job.held_tokens)
        if job.arrived_tokens and first > job.staged_from:
            self.truncate(job, first, FailReason.TRANSFER, now_ms)
        else:
            self.end(job, JobState.CANCELLED)

    def late(self, job: Job) -> None:
        """Its turn is sent, perhaps not for the first time: what has not come is late, once."""
        late_bytes = max(job.late_bytes, job.planned_bytes - job.moved_bytes)
        self.tallies[job.trigger].late_bytes += late_bytes - job.late_bytes
        job.late_bytes = late_bytes

    def yield_link(self, path: Path, now_ms: float) -> None:
        """Demand waits for it: what is under way there is taken back and queued again."""
        self.budgets.rest(path, now_ms + self.params.retry_ms)
        for job in self.active.values():
            self._queue_again(job, [move for move, copy in job.moving.items() if copy.path == path])
            self.waiting.update(job)

    def node_lost(self, node: str, now_ms: float) -> None:
        for job in list(self.active.values()):
            if job.node == node:
                self.end(job, JobState.FAILED, FailReason.NODE_LOST)
            else:
                self._without_source(job, node, now_ms)

    def end(self, job: Job, state: JobState, reason: FailReason | None = None, useful_bytes: int = 0) -> None:
        """The one way out."""
        job.advance(state, reason)
        for move in list(job.moving):
            self._take_back(move)
        if job.warm_move is not None:
            self.drop_warm(job, cancel=True)
        job.pending.clear()
        self.waiting.update(job)
        if job.holds:
            job.holds = False
            self.moves.append(Release(job.id))
        self.budgets.give_back(job.node, job.reserved_bytes)
        job.reserved_bytes = 0
        del self.active[job.id]
        if self._by_subject.get(job.subject) == job.id:
            del self._by_subject[job.subject]
        self.tallies[job.trigger].ended(job, useful_bytes)
        self.tallies[Trigger.DECISION].recalled(job)
        self.remember(job)

    def remember(self, job: Job) -> None:
        self.just_ended.append(job)
        self._ended[job.id] = job
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def drop_warm(self, job: Job, *, cancel: bool) -> None:
        move, job.warm_move = job.warm_move, None
        if move is not None:
            self._by_move.pop(move, None)
            if cancel:
                self.moves.append(CancelMove(move))

    def engine_restarted(self, worker: WorkerKey, now_ms: float) -> None:
        """Its warm requests are gone with it, and what they brought up; what lies in L3 is not."""
        for job in self.active.values():
            if job.worker == worker:
                self.drop_warm(job, cancel=False)
                self.lose_warmed(job)
                if job.warm_at_ms is None and not job.sent:
                    job.warm_at_ms = now_ms
                self.just_changed.append(job)

    def lose_warmed(self, job: Job) -> None:
        """What was brought to L1 is not there for its turn."""
        self.tallies[job.trigger].warm_wasted_bytes += job.warmed_bytes
        job.warmed_tokens = job.warmed_bytes = 0

    def _next_starts(self) -> list[tuple[Job, Path]]:
        """The first of each link, in the order of jobs, and of one job in the order of its prompt."""
        found = [(order, _at(self.active[order[-1]], path), path) for path, order in self.waiting.first()]
        return [(self.active[order[-1]], path) for order, _, path in sorted(found)]

    def _start(self, job: Job, path: Path, view: View, now_ms: float) -> float | None:
        """A chunk on this link, if it may. Until when the link is then taken; None = until something there has ended."""
        at = _at(job, path)
        chunk, rest = _part(job.pending[at], int(self.params.chunk_bytes / job.bytes_per_token), job.page_tokens)
        size, pace = _size(chunk, job), self.budgets.pace(view.link(path))
        if not pace:
            return now_ms + self.params.retry_ms
        if not self.budgets.may_start(path, size, now_ms):
            return self.budgets.free_at(path, now_ms)
        if rest is None:
            del job.pending[at]
        else:
            job.pending[at] = rest
        self.waiting.update(job)
        self._begin(job, chunk, size, pace, now_ms)
        return now_ms + size / pace

    def _begin(self, job: Job, chunk: Copy, size: int, pace: float, now_ms: float) -> None:
        if job.state is JobState.QUEUED:
            job.advance(JobState.FETCHING)
        move = self.new_move(job)
        job.moving[move] = chunk
        self.budgets.start(chunk.path, size, pace, now_ms)
        until = job.expires_ms
        self.moves.append(
            Stage(move, job.id, job.subject, chunk.path, chunk.start, chunk.tokens, size, until, pace, chunk.max_bytes)
        )

    def _settle(self, move: int, moved_bytes: int) -> tuple[Job | None, Copy | None]:
        """A staging move is over; unknown ones were taken back before."""
        job = self._by_move.get(move)
        if job is None or move not in job.moving:
            return None, None
        del self._by_move[move]
        self._progress.pop(move, None)
        chunk = job.moving.pop(move)
        size = _size(chunk, job)
        self.budgets.end(chunk.path, size)
        moved = max(0, min(moved_bytes, max(size, chunk.max_bytes or 0)))
        job.moved_bytes += moved
        self.tallies[job.trigger].moved_bytes += moved
        if chunk.max_bytes is not None:
            chunk = msgspec.structs.replace(chunk, max_bytes=max(0, chunk.max_bytes - moved))
        return job, chunk

    def _take_back(self, move: int) -> Copy | None:
        """Its chunk, with what may still be moved for it."""
        _, chunk = self._settle(move, self._progress.get(move, 0))
        self.moves.append(CancelMove(move))
        return chunk

    def _queue_again(self, job: Job, moves: Iterable[int]) -> None:
        chunks = [self._take_back(move) for move in moves]
        job.pending.extendleft(sorted(filter(None, chunks), key=lambda chunk: chunk.start, reverse=True))

    def _without_source(self, job: Job, node: str, now_ms: float) -> None:
        self._queue_again(job, [move for move, copy in job.moving.items() if copy.path.source == node])
        rerouted: deque[Copy] = deque()
        for copy in sorted(job.pending, key=lambda copy: copy.start):
            paths = [path for path in (copy.path, *copy.others) if path.source != node]
            if not paths:
                job.pending = rerouted
                self.truncate(job, copy.start, FailReason.NODE_LOST, now_ms)
                return
            rerouted.append(msgspec.structs.replace(copy, path=paths[0], others=tuple(paths[1:])))
        job.pending = rerouted
        self.waiting.update(job)

    def _ready(self, job: Job, now_ms: float) -> None:
        """All that will come has come: lease it, for as long as a turn that comes at the last moment may queue."""
        job.advance(JobState.READY)
        self.just_changed.append(job)
        spare = job.reserved_bytes - job.moved_bytes
        if spare > 0:
            self.budgets.give_back(job.node, spare)
            job.reserved_bytes -= spare
        job.expires_ms = max(job.deadline_ms, now_ms) + self.params.hold_ms if not job.sent else job.expires_ms
        job.warm_tokens = min(job.warm_tokens, job.held_tokens)
        if job.held_tokens:
            job.holds = True
            ttl_ms = job.expires_ms - now_ms + self.params.hold_ms
            moved_from = min(job.staged_from, job.held_tokens)
            self.moves.append(Hold(job.id, job.subject, job.node, job.held_tokens, ttl_ms, moved_from))


def _at(job: Job, path: Path) -> int:
    """Of the first that waits for this link."""
    return next(at for at, copy in enumerate(job.pending) if copy.path == path)


def _size(copy: Copy, job: Job) -> int:
    return round(copy.tokens * job.bytes_per_token)


def _shared_out(copies: deque[Copy], max_bytes: int) -> deque[Copy]:
    """Each with its part of the job's own limit, by tokens."""
    tokens = sum(copy.tokens for copy in copies)
    return deque(msgspec.structs.replace(copy, max_bytes=max_bytes * copy.tokens // tokens) for copy in copies)


def _within(copies: Iterable[Copy], limit: float, job: Job, ready_tokens: int) -> tuple[deque[Copy], int]:
    """The leading copies that fit `limit` bytes, in whole pages, and up to which token the prompt will then lie ready."""
    kept: deque[Copy] = deque()
    left = max(0.0, limit)
    for copy in copies:
        fitting = int(left / job.bytes_per_token) if _size(copy, job) > left else copy.tokens
        if fitting < copy.tokens:
            fitting -= fitting % job.page_tokens
            if fitting > 0:
                kept.append(msgspec.structs.replace(copy, tokens=fitting))
            return kept, copy.start + fitting
        kept.append(copy)
        left -= _size(copy, job)
    return kept, ready_tokens


def _part(copy: Copy, tokens: int, page_tokens: int) -> tuple[Copy, Copy | None]:
    """The first chunk of a copy, in whole pages, and the rest."""
    tokens = max(page_tokens, tokens - tokens % page_tokens)
    if tokens >= copy.tokens:
        return copy, None
    replace = msgspec.structs.replace
    first, rest = replace(copy, tokens=tokens), replace(copy, start=copy.start + tokens, tokens=copy.tokens - tokens)
    if copy.max_bytes is None:
        return first, rest
    allowed = copy.max_bytes * tokens // copy.tokens
    return replace(first, max_bytes=allowed), replace(rest, max_bytes=copy.max_bytes - allowed)
