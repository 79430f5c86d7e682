"""The same calls in virtual time: the simulator's engine with given rates, behind a wire that takes its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from bench.simulate.agenda import Agenda
from bench.simulate.clients import Ask, Clients
from bench.simulate.engines import EnginePool, Listener
from bench.simulate.workload import Call, SessionPlan
from bench.validate.timed import Timed
from costmodel.values import WorkerKey
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.model.request import Cached, EngineRequest

_KEY = WorkerKey("fitted")
_FOREVER_MS = float("inf")


class Fitted(msgspec.Struct, frozen=True):
    """What a replay needs to know of a server. `wire_ms` and so much a prompt token pass between a client's sending and the
    scheduler's hearing of it: HTTP, JSON, the way back of the first event."""

    engine: EngineParams
    wire_ms: float = 5.0
    wire_ms_per_token: float = 0.001


class VirtualReplay:
    """One replay. Use once."""

    def __init__(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self._agenda = Agenda()
        listener = Listener(lambda rid, cached: None, self._first, self._finished, lambda key, events: None)
        self._pool = EnginePool({_KEY: fitted.engine}, self._agenda, listener)
        self._clients = Clients(self._agenda, self._ask, until_ms=_FOREVER_MS)
        self._asks: dict[str, Ask] = {}
        self._sent: dict[str, tuple[str, int, Call, float]] = {}
        self._firsts: dict[str, tuple[float, int]] = {}
        self._replies = 0
        self._timed: list[Timed] = []

    def closed_loop(self, plans: Iterator[SessionPlan], concurrency: int, ramp_ms: float) -> list[Timed]:
        """As `RealServer.replay`."""
        self._clients.closed_loop(plans, concurrency, ramp_ms)
        return self._ran()

    def as_sent(self, measured: Iterable[Timed]) -> list[Timed]:
        """Every call at the time at which it was sent when it was measured, whatever becomes of the others; in that order."""
        for timed in measured:
            self._agenda.at(timed.sent_ms, self._send, f"{timed.session}/{timed.index}", timed.session, timed.index, timed.call)
        return sorted(self._ran(), key=lambda timed: timed.sent_ms)

    def _ran(self) -> list[Timed]:
        while self._agenda.step():
            pass
        return self._timed

    def _ask(self, ask: Ask) -> None:
        rid = f"{ask.thread_id}/{ask.index}"
        self._asks[rid] = ask
        self._send(rid, ask.thread_id, ask.index, ask.call)

    def _send(self, rid: str, session: str, index: int, call: Call) -> None:
        self._sent[rid] = (session, index, call, self._agenda.now_ms)
        wire_ms = self._fitted.wire_ms + self._fitted.wire_ms_per_token * call.prompt_tokens
        request = EngineRequest(rid, call.prompt_tokens, call.output_tokens, call.output_tokens, self._pages(call))
        self._agenda.after(wire_ms, self._pool.submit, request, _KEY, _KEY)

    def _pages(self, call: Call) -> list[int]:
        """The prompt's and, with ids of their own, those that its reply fills: it is cached, and nobody asks for it again."""
        pages = call.pages()
        more = (call.prompt_tokens + call.output_tokens - 1) // self._fitted.engine.page_tokens - len(pages)
        self._replies += more
        return pages + [-number for number in range(self._replies - more + 1, self._replies + 1)]

    def _first(self, rid: str, cached: Cached) -> None:
        self._firsts[rid] = (self._agenda.now_ms, cached.tokens)

    def _finished(self, rid: str, done: bool) -> None:
        session, index, call, sent_ms = self._sent[rid]
        first_ms, cached = self._firsts[rid]
        self._timed.append(Timed(session, index, call, sent_ms, first_ms - sent_ms, self._agenda.now_ms - sent_ms, cached))
        if (ask := self._asks.get(rid)) is not None:
            self._clients.done(ask)
