"""The simulated clients: they send calls when tools and people are done, never before the reply that these wait for.

Closed loop keeps a number of sessions open; open loop starts each at its recorded time. A rota limits how many sessions are
active and takes turns by quantum; a parked session's next call waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from bench.simulate.agenda import Agenda
from bench.simulate.workload import Call, SessionPlan


class Ask(msgspec.Struct, frozen=True):
    """One call that a client sends now. `rotated`: its session was parked since its last call."""

    session: Session
    thread: int
    index: int
    call: Call
    following: Call | None
    rotated: bool

    @property
    def thread_id(self) -> str:
        name = self.session.plan.name
        return name if self.thread == 0 else f"{name}.{self.thread}"


class Session:
    """One running session: what its threads wait for."""

    __slots__ = ("active_ms", "open_children", "pending", "plan", "rotated", "running_threads", "waiting_at")

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.open_children = 0
        self.waiting_at: int | None = None  # the root's call that is over while its children run
        self.running_threads = 1
        self.active_ms: float | None = None  # since when the rota lets it run; None while parked
        self.rotated = False  # it was parked since its last call
        self.pending: list[tuple[int, int]] = []  # calls that wait for the rota


class Rota(msgspec.Struct, frozen=True):
    """At most `active` sessions at once; one that has run for `quantum_ms` makes room for the next."""

    active: int
    quantum_ms: float


class Clients:
    """`send` is called with every call; `done` must be told when its reply has ended. No new calls after `until_ms`."""

    def __init__(
        self,
        agenda: Agenda,
        send: Callable[[Ask], None],
        *,
        until_ms: float,
        rota: Rota | None = None,
        gap_factor: float = 1.0,
    ) -> None:
        self._gap_factor = gap_factor
        self._agenda = agenda
        self._send = send
        self._until_ms = until_ms
        self._rota = rota
        self._active = 0
        self._waiting: deque[Session] = deque()
        self._plans: Iterator[SessionPlan] = iter(())

    def open_loop(self, plans: Iterator[SessionPlan]) -> None:
        for plan in plans:
            self._agenda.at(plan.start_ms, self._begin, plan)

    def closed_loop(self, plans: Iterator[SessionPlan], concurrency: int, ramp_ms: float) -> None:
        """Start `concurrency` sessions spread over `ramp_ms`; whenever one ends the next plan begins."""
        self._plans = plans
        for slot in range(concurrency):
            self._agenda.at(slot * ramp_ms / concurrency, self._next_session)

    def done(self, ask: Ask) -> None:
        """The reply to `ask` has ended."""
        session, plan = ask.session, ask.session.plan
        self._maybe_park(session)
        children = [i for i, thread in enumerate(plan.threads) if thread.parent == ask.thread and thread.after == ask.index]
        for child in children:
            self._later(session, child, 0)
        session.running_threads += len(children)
        if children:
            session.open_children += len(children)
            session.waiting_at = ask.index
            return
        self._go_on(session, ask.thread, ask.index)

    def _go_on(self, session: Session, thread: int, index: int) -> None:
        if index + 1 < len(session.plan.threads[thread].calls):
            self._later(session, thread, index + 1)
            return
        session.running_threads -= 1
        if thread and session.waiting_at is not None:
            session.open_children -= 1
            if session.open_children == 0:
                at, session.waiting_at = session.waiting_at, None
                self._go_on(session, 0, at)
        elif session.running_threads == 0:
            self._ended(session)

    def _later(self, session: Session, thread: int, index: int) -> None:
        gap_ms = session.plan.threads[thread].calls[index].gap_ms * self._gap_factor
        self._agenda.after(gap_ms, self._wish, session, thread, index)

    def _next_session(self) -> None:
        plan = next(self._plans, None)
        if plan is not None:
            self._begin(plan)

    def _begin(self, plan: SessionPlan) -> None:
        session = Session(plan)
        if self._rota is None:
            session.active_ms = self._agenda.now_ms
        else:
            self._waiting.append(session)
            self._fill()
        self._later(session, 0, 0)

    def _ended(self, session: Session) -> None:
        if self._rota is not None:
            self._active -= 1
            self._fill()
        self._next_session()

    def _wish(self, session: Session, thread: int, index: int) -> None:
        """A client wants to send; a parked session's wish waits."""
        if session.active_ms is None:
            session.pending.append((thread, index))
        else:
            self._ask(session, thread, index)

    def _ask(self, session: Session, thread: int, index: int) -> None:
        if self._agenda.now_ms >= self._until_ms:
            return
        rotated, session.rotated = session.rotated, False
        calls = session.plan.threads[thread].calls
        following = calls[index + 1] if index + 1 < len(calls) else None
        self._send(Ask(session, thread, index, calls[index], following, rotated))

    def _maybe_park(self, session: Session) -> None:
        """At the end of a reply a session whose quantum is over makes room, if anybody waits."""
        rota, now_ms = self._rota, self._agenda.now_ms
        if rota is None or not self._waiting or session.active_ms is None or now_ms - session.active_ms < rota.quantum_ms:
            return
        session.active_ms, session.rotated = None, True
        self._active -= 1
        self._waiting.append(session)
        self._fill()

    def _fill(self) -> None:
        while self._rota is not None and self._waiting and self._active < self._rota.active:
            session = self._waiting.popleft()
            self._active += 1
            session.active_ms = self._agenda.now_ms
            pending, session.pending = session.pending, []
            for thread, index in pending:
                self._ask(session, thread, index)
