"""Drives the planner in real time: what happens to turns and workers goes in, moves come out, and one timer wakes it.

Hooks only append to a queue; the queue is worked off in a step of the loop of its own, so that no turn waits for a plan.
Workers are looked at every so often, and so is each agent. Switched off, hooks return at once and nothing runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec
import structlog

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Event, GoneReason
from kvtier.prefetch.job import Job
from kvtier.prefetch.moves import Move
from kvtier.prefetch.params import Mode
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import View
from router.clock import Clock
from router.errors import PrefetchDisabled
from router.fleet.fleet import Fleet
from router.fleet.worker import WorkerState
from router.prefetch.executor import Executor
from router.prefetch.links import LinkBook
from router.prefetch.named_prompts import NamedPrompts
from router.prefetch.node_agents import AgentFault, NodeAgents
from router.threads.sighting import Kind
from router.threads.store import ThreadStore
from router.turn.record import Outcome, TurnRecord
from router.turn.turn import Turn
from router.wire.head import Header

_log = structlog.get_logger(__name__)
_MAX_QUEUED = 65_536
_LOOK_S = 1.0
_MAX_SIBLINGS = 8  # threads of a session that lives again that are prepared for at once
_CLIENT_CHARS = 32
_SOME_TOOL = "@tool"
_Look = Callable[[], Awaitable[None]]
_TOOL_REASONS = frozenset(("tool_calls", "tool_use", "function_call"))


class Prefetcher:
    """A `TurnWatcher`. `dropped` counts events beyond the queue's bound, `crashes` faults of our own."""

    def __init__(
        self,
        planner: Planner,
        view: View,
        make_executor: Callable[[Callable[[Event], None]], Executor],
        agents: NodeAgents,
        nodes: tuple[str, ...],
        links: LinkBook,
        fleet: Fleet,
        threads: ThreadStore,
        named: NamedPrompts,
        clock: Clock,
        look: Callable[[], None],
    ) -> None:
        """`look` is called whenever workers and agents are looked at."""
        self._look_too = look
        self.on = planner.params.mode is not Mode.OFF  # else nothing is watched, and nothing can be switched on
        self.planner = planner
        self.executor = make_executor(self.tell)
        self.dropped = 0
        self.crashes = 0
        self._view = view
        self._agents = agents
        self._nodes = nodes
        self._links = links
        self._fleet = fleet
        self._threads = threads
        self._named = named
        self._clock = clock
        self._queue: deque[Event] = deque()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = float("inf")
        self._looking: list[asyncio.Task[None]] = []
        self._states: dict[WorkerKey, WorkerState] = {}
        self._lives: dict[str, int] = {}  # epochs of agents: another one has none of our leases
        self._released: Callable[[WorkerKey], None] = _nobody_waits

    def start(self) -> None:
        looks: list[_Look] = [self._look_at_fleet, *(partial(self._look_at_agent, node) for node in self._nodes)]
        self._looking = [asyncio.create_task(self._every_so_often(look), name="prefetch look") for look in looks]

    async def close(self) -> None:
        """What turns tell that end meanwhile, or later, begins nothing more."""
        self.on = False
        for looking in self._looking:
            looking.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        await self.executor.close()

    def switch(self, mode: Mode) -> None:
        """From now on; what runs goes on only where that is ON. Turns are watched all the same. Raises `PrefetchDisabled`."""
        if not self.on:
            why = "prefetch.mode was disabled when this gateway was started, so that it watches no turns"
            raise PrefetchDisabled(f"{why}: set it to enabled or dry_run in the file, and restart")
        now_ms = self._clock()
        self._obey(self.planner.replace(msgspec.structs.replace(self.planner.params, mode=mode), now_ms), now_ms)
        self._wake_in_time()

    # what turns tell

    def listen(self, released: Callable[[WorkerKey], None]) -> None:
        self._released = released

    def comes(self, turn: Turn, worker: WorkerKey, *, full: bool) -> None:
        """For the planner it has returned; where it goes in the end is told by `sent`. Planned at once, as `fetches` is asked
        next."""
        if self.on:
            self._claim(turn.sighting.thread, turn.sighting.blocks, worker)
            self.tell(ev.Held(turn.sighting.thread, worker, _client(turn.request.headers), full))
            self._work()

    def fetches(self, turn: Turn, worker: WorkerKey) -> bool:
        return self.on and self.planner.fetches(turn.sighting.thread, worker, self._clock())

    def prefilled(self, thread: str) -> None:
        if self.on:
            self.tell(ev.Prefilled(thread))

    def sent(self, turn: Turn) -> None:
        attempt = turn.attempt
        if not self.on or attempt is None:
            return
        sighting = turn.sighting
        if sighting.kind is Kind.COMPACTED and sighting.parent is not None:
            self.tell(ev.Gone(sighting.parent, GoneReason.COMPACTED))
        worker = attempt.placement.decision.chosen.prefill
        self._claim(sighting.thread, sighting.blocks, worker)
        self.tell(ev.Sent(sighting.thread, worker, _client(turn.request.headers)))
        if sighting.first_call:
            self._session_lives(sighting.thread)

    def tool_closed(self, thread: str, worker: WorkerKey, headers: list[Header], tool: str) -> None:
        if self.on:
            self.tell(ev.ToolClosed(thread, worker, tool, _client(headers)))

    def ended(self, turn: Turn, record: TurnRecord) -> None:
        if not self.on or record.decision is None:
            return
        worker, thread = record.decision.chosen.prefill, record.thread
        if record.outcome is Outcome.SERVED:
            known = self._threads.get(thread)
            if known is not None:  # its prompt may have been made meanwhile
                self._claim(thread, known.blocks, worker)
            self.tell(ev.Served(thread, worker, record.facts.cached_tokens if record.facts is not None else None))
        self.tell(ev.Ended(thread, worker, _tool(record), _client(turn.request.headers)))

    def gone(self, thread: str) -> None:
        """The client says that the thread is over."""
        self.tell(ev.Gone(thread, GoneReason.DECLARED))

    def _claim(self, thread: str, blocks: Sequence[int], worker: WorkerKey) -> None:
        """What a client had prefetched by naming a prompt is for the first turn that begins with it and goes where it lies."""
        for subject in self._named.leading(blocks):
            job = self.planner.board.of_subject(subject)
            if job is not None and (job.worker == worker or job.node == self._node_of(worker)):
                self.tell(ev.Claimed(subject, thread))
                return

    def _node_of(self, worker: WorkerKey) -> str | None:
        return next((each.node for each in self._fleet.workers if each.worker_id == worker.worker_id), None)

    def _session_lives(self, thread_id: str) -> None:
        """One thread of a session began or resumed: others of it that idled may follow."""
        thread = self._threads.get(thread_id)
        if thread is None:
            return
        others = [name for name in reversed(thread.group.threads) if name != thread_id]
        for name in others[:_MAX_SIBLINGS]:
            self.tell(ev.Resumed(name))

    # the drive

    def tell(self, event: Event) -> None:
        """Take an event in; it is worked off within this turn of the loop."""
        if len(self._queue) >= _MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(event)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    def ask(self, event: ev.Asked) -> Job | None:
        """Plan an explicit prefetch at once."""
        self._plan(event)
        self._wake_in_time()
        return self.planner.job(event.job)

    def cancel(self, event: ev.CancelJob) -> None:
        self._plan(event)
        self._wake_in_time()

    def _work(self) -> None:
        """A step of the loop; a fault in it must not end prefetching."""
        self._scheduled = False
        queue, self._queue = self._queue, deque()
        if not self.on:
            return
        for event in queue or (ev.Tick(),):
            try:
                self._plan(event)
            except Exception:  # noqa: BLE001  the root of all planning
                self.crashes += 1
                _log.exception("prefetch_crashed", planned=type(event).__name__)
        self._wake_in_time()

    def _plan(self, event: Event) -> None:
        now_ms = self._clock()
        self._obey(self.planner.plan(event, self._view, now_ms), now_ms)

    def _obey(self, moves: Iterable[Move], now_ms: float) -> None:
        self.executor.execute(moves)
        for worker in self.planner.take_released(now_ms):
            asyncio.get_running_loop().call_soon(self._released, worker)

    def _wake_in_time(self) -> None:
        """One timer for everything; it may ring too early, which costs a tick."""
        due_ms = self.planner.next_ms
        if due_ms is None or due_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_s = max(0.0, due_ms - self._clock()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_ms = None, float("inf")
        self._work()

    # workers and agents

    async def _every_so_often(self, look: _Look) -> None:
        """The root of a task: an agent that does not answer keeps nobody from looking at the others."""
        while True:
            try:
                await look()
            except Exception:  # noqa: BLE001  the root of this task
                self.crashes += 1
                _log.exception("prefetch_crashed", planned="looking at workers and agents")
            await asyncio.sleep(_LOOK_S)

    async def _look_at_fleet(self) -> None:
        self._look_at_workers()
        self._look_too()

    def _look_at_workers(self) -> None:
        """Draining workers and new ones are seen here, engines that came back empty, and workers that were taken out."""
        seen = {key: worker.state for worker in self._fleet.workers for key in worker.keys}
        before, self._states = self._states, seen
        for key in before.keys() - seen.keys():
            self.tell(ev.Drained(key))
        for key, state in seen.items():
            if before.get(key) is not state:
                self._tell_state(key, before.get(key), state)

    def _tell_state(self, key: WorkerKey, before: WorkerState | None, now: WorkerState) -> None:
        if now is WorkerState.DRAINING:
            self.tell(ev.Drained(key))
        elif now is WorkerState.READY and before is WorkerState.DOWN:
            self.tell(ev.EngineRestarted(key))
        elif now is WorkerState.READY:
            self.tell(ev.ScaledOut(key))

    async def _look_at_agent(self, node: str) -> None:
        try:
            look = await self._agents.look(node)
        except AgentFault as fault:
            self._lost(node, str(fault))
            return
        if self._lives.setdefault(node, look.epoch) != look.epoch:
            self._lost(node, "it was restarted")
        self._lives[node] = look.epoch
        self._links.told(node, look.free_bytes, look.stage_bytes)

    def _lost(self, node: str, fault: str) -> None:
        if self._links.lost(node):
            _log.warning("prefetch_agent_lost", node=node, fault=fault)
            self.tell(ev.NodeLost(node))


def _nobody_waits(worker: WorkerKey) -> None:
    """Nobody has listened yet."""


def _tool(record: TurnRecord) -> str:
    """The last tool that was called; of a whole reply only that one was is known."""
    if record.tool_calls:
        return record.tool_calls[-1]
    return _SOME_TOOL if record.finish_reason in _TOOL_REASONS else ""


def _client(headers: list[Header]) -> str:
    """The client program: the first product of its User-Agent, without version."""
    for name, value in headers:
        if name == b"user-agent":
            return value[:_CLIENT_CHARS].split(b"/", 1)[0].decode("latin-1")
    return ""
