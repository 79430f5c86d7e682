"""Does what the planner wants: one task a move, each with a deadline, all owned here; results go back as events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import structlog

from kvtier.agent.stager import StageState
from kvtier.prefetch.events import Event, FailReason, MoveEnded, MoveFailed, NodeLost, Progressed
from kvtier.prefetch.moves import CancelMove, Hold, Move, Release, Stage, Warm
from router.clock import Clock
from router.prefetch.kv_bytes import KvBytes
from router.prefetch.links import LinkBook
from router.prefetch.node_agents import AgentFault, NodeAgents, Pages, StageProgress, Ticket
from router.prefetch.subjects import Subjects
from router.prefetch.warmer import Warmer

_log = structlog.get_logger(__name__)
_POLL_S = 0.02
_WARM_TIMEOUT_S = 60.0
_STAGE_HOLD_MS = 5_000.0  # a stage's own hold bridges the time until the job's lease is taken

_REASONS = {StageState.PARTIAL: FailReason.NO_COPY, StageState.FULL: FailReason.NO_ROOM}


class Executor:
    """`tell` takes events at once and returns. `crashes` counts faults of our own, `leases_refused` agents that would not hold
    what was staged there."""

    def __init__(
        self,
        agents: NodeAgents,
        warmer: Warmer,
        subjects: Subjects,
        links: LinkBook,
        kv_bytes: KvBytes,
        tell: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._agents = agents
        self._warmer = warmer
        self._subjects = subjects
        self._links = links
        self._kv_bytes = kv_bytes
        self._tell = tell
        self._clock = clock
        self._moves: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, asyncio.Task[Ticket | None]] = {}
        self._parting: set[asyncio.Task[None]] = set()  # moves that were taken back, and what agents are told of that
        self.crashes = 0
        self.leases_refused = 0

    @property
    def running(self) -> int:
        return len(self._moves)

    @property
    def sizes_refused(self) -> int:
        return self._kv_bytes.refused

    @property
    def leases(self) -> int:
        return len(self._leases)

    def leased(self, job: int) -> bool:
        """Whether an agent holds what is ready for this job."""
        lease = self._leases.get(job)
        return lease is not None and lease.done() and not lease.cancelled() and lease.result() is not None

    def execute(self, moves: Iterable[Move]) -> None:
        for move in moves:
            if isinstance(move, Stage):
                self._start(move.move, partial(self._stage, move))
            elif isinstance(move, Warm):
                self._start(move.move, partial(self._warm, move))
            elif isinstance(move, CancelMove):
                task = self._moves.pop(move.move, None)
                if task is not None:
                    task.cancel()
                    self._see_off(task)
            elif isinstance(move, Hold):
                self._leases[move.job] = asyncio.create_task(self._hold(move), name=f"prefetch lease of job {move.job}")
            else:
                self._release(move)

    async def close(self) -> None:
        """Everything is taken back; leases are given back as far as their agents answer."""
        for task in self._moves.values():
            task.cancel()
        await asyncio.gather(*self._moves.values(), return_exceptions=True)
        for job in list(self._leases):
            self._release(Release(job))
        while self._parting:
            await asyncio.gather(*self._parting, return_exceptions=True)

    def _start(self, move: int, work: Callable[[], Awaitable[Event]]) -> None:
        self._moves[move] = asyncio.create_task(self._guard(move, work), name=f"prefetch move {move}")

    async def _guard(self, move: int, work: Callable[[], Awaitable[Event]]) -> None:
        """The root of a move's task. What was cancelled answers nothing."""
        try:
            event = await work()
        except AgentFault as fault:
            _log.debug("prefetch_move_failed", move=move, reason=fault.reason, fault=str(fault))
            event = MoveFailed(move, fault.reason)
        except Exception:  # noqa: BLE001  a task root: the planner must hear of it
            self.crashes += 1
            _log.exception("prefetch_move_crashed", move=move)
            event = MoveFailed(move, FailReason.TRANSFER)
        if self._moves.get(move) is asyncio.current_task():
            del self._moves[move]
            self._tell(event)

    async def _stage(self, move: Stage) -> Event:
        pages = await self._pages(move.subject, move.start, move.tokens)
        begun_ms, target = self._clock(), move.path.target
        try:
            left_ms = max(0.0, move.deadline_ms - begun_ms)
            order = self._agents.stage(pages, target, move.path.source, left_ms, _STAGE_HOLD_MS, move.max_bytes)
            ticket = await self._ordered(order)
            progress = await self._until_staged(move, ticket)
        except AgentFault as fault:
            if fault.reason is FailReason.NODE_LOST and fault.node:
                self._links.lost(fault.node)
                return NodeLost(fault.node)
            raise
        share = 1.0 if progress.state is StageState.READY else min(1.0, progress.ready_pages / pages.count)
        moved = progress.moved_bytes if move.path.source != target else int(share * move.size_bytes)
        if progress.state is StageState.READY:
            self._learn(move, pages, moved, self._clock() - begun_ms, whole=not ticket.there)
            return MoveEnded(move.move, moved)
        reason = _REASONS.get(progress.state, FailReason.TRANSFER)
        return MoveFailed(move.move, reason, moved, progress.ready_pages * pages.page_tokens)

    def _learn(self, move: Stage, pages: Pages, moved_bytes: int, took_ms: float, *, whole: bool) -> None:
        """How fast the link is and, of a `whole` stage between nodes, what pages weigh; of an agent that tells what cannot be,
        nothing."""
        source, target = move.path
        tokens = pages.count * pages.page_tokens
        if source != target and not self._kv_bytes.possible(target, tokens, moved_bytes):
            return
        self._links.moved(move.path, moved_bytes, took_ms)
        prompt = self._subjects.prompt(move.subject)
        if prompt is not None and source != target and whole:
            self._kv_bytes.staged(prompt.pool, tokens, moved_bytes)

    async def _ordered(self, order: Coroutine[Any, Any, Ticket]) -> Ticket:
        """A move that is taken back while its order is on its way is taken back once it has come."""
        ordering = asyncio.create_task(order)
        try:
            return await asyncio.shield(ordering)
        except asyncio.CancelledError:
            self._courtesy(self._undo(ordering, self._agents.cancel))
            raise

    async def _until_staged(self, move: Stage, ticket: Ticket) -> StageProgress:
        """Asked every so often; a move that is taken back is taken back at the agent, too."""
        ended = False
        try:
            while True:
                progress = await self._agents.progress(ticket)
                if progress.ended:
                    ended = True
                    return progress
                self._tell(Progressed(move.move, progress.moved_bytes))
                await asyncio.sleep(_POLL_S)
        finally:
            if not ended:
                self._courtesy(self._agents.cancel(ticket))

    async def _warm(self, move: Warm) -> Event:
        timeout_s = min(_WARM_TIMEOUT_S, max(0.1, (move.deadline_ms - self._clock()) / 1000))
        moved = await self._warmer.warm(move.subject, move.worker, move.tokens, timeout_s)
        return MoveEnded(move.move, round(moved * move.size_bytes / max(1, move.tokens - move.start)))

    async def _hold(self, move: Hold) -> Ticket | None:
        """The root of a lease's task. Without it the job goes on, and what lies there may be evicted before its turn."""
        try:
            try:
                return await self._pin(move, 0)
            except AgentFault as fault:
                if fault.reason is not FailReason.NO_ROOM or not 0 < move.moved_from < move.tokens:
                    raise
                return await self._pin(move, move.moved_from)
        except AgentFault as fault:
            self.leases_refused += fault.reason is FailReason.NO_ROOM
            _log.debug("prefetch_lease_failed", job=move.job, node=move.node, fault=str(fault))
        except Exception:  # noqa: BLE001  a task root
            self.crashes += 1
            _log.exception("prefetch_lease_crashed", job=move.job)
        return None

    async def _pin(self, move: Hold, start: int) -> Ticket:
        pages = await self._pages(move.subject, start, move.tokens - start)
        return await self._agents.pin(pages, move.node, move.ttl_ms)

    def _release(self, move: Release) -> None:
        lease = self._leases.pop(move.job, None)
        if lease is not None:
            self._courtesy(self._undo(lease, self._agents.unpin))

    async def _undo(
        self, asked: asyncio.Task[Ticket] | asyncio.Task[Ticket | None], undo: Callable[[Ticket], Coroutine[Any, Any, None]]
    ) -> None:
        ticket = await asked
        if ticket is not None:
            await undo(ticket)

    def _courtesy(self, work: Coroutine[Any, Any, None]) -> None:
        self._see_off(asyncio.create_task(self._courteous(work)))

    def _see_off(self, task: asyncio.Task[None]) -> None:
        self._parting.add(task)
        task.add_done_callback(self._parting.discard)

    async def _courteous(self, work: Coroutine[Any, Any, None]) -> None:
        """The root of a courtesy's task: what an agent would find out by itself when its own deadlines pass."""
        try:
            await work
        except AgentFault as fault:
            _log.debug("prefetch_courtesy_failed", fault=str(fault))
        except Exception:  # noqa: BLE001  a task root
            self.crashes += 1
            _log.exception("prefetch_courtesy_crashed")

    async def _pages(self, subject: str, start: int, tokens: int) -> Pages:
        prompt = self._subjects.prompt(subject)
        digests = await self._subjects.digests(subject, start, tokens)
        if prompt is None or not digests:
            raise AgentFault(FailReason.NO_COPY, f"the pages of {subject} have no names here")
        return Pages(frozenset(prompt.pool.models), prompt.block_tokens, digests)
