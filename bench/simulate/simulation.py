"""One run: a workload, a pool in truth, a gateway that believes something else, and one policy. Deterministic by its seed.

The random generators of clients, beliefs and policy are apart, so that every policy is asked the same by the same clients and
starts from the same wrong beliefs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from bench.simulate.agenda import Agenda
from bench.simulate.allowance import Allowance
from bench.simulate.churn import Change
from bench.simulate.clients import Ask, Clients
from bench.simulate.cluster import Cluster, misjudge
from bench.simulate.engines import L3, EnginePool, Listener
from bench.simulate.hindsight import Fate, Hindsight
from bench.simulate.outcome import Outcome
from bench.simulate.prefetching import Prefetching, Subject
from bench.simulate.served import Served
from bench.simulate.settings import Settings
from bench.simulate.shared_pool import Ssd
from bench.simulate.view import Sent, View
from bench.simulate.workload import SessionPlan, Workload, reply_pages
from costmodel.params import CostParams
from costmodel.policies.base import Policy
from costmodel.score import runners_up
from costmodel.values import Fleet, Role, Scored, Turn, WorkerKey
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.request import Cached, EngineRequest
from kvtier.index.events import BlockEvent
from kvtier.prefetch.params import PrefetchParams
from router.fleet.hold import Hold, Standing
from router.threads.estimate import Rates as OutputRates
from router.threads.estimate import blend

_CLIENT_LIMIT_TOKENS = 8_192  # what clients set as max_tokens; the engine reserves for it
_DRAIN_MS = 1_800_000.0  # after the last call, how long replies may still take
_CLIENT_RETRY_MS = 1_000.0  # until a client whose stream broke sends the call again; assumed


class _Thread:
    """What the gateway remembers of a thread."""

    __slots__ = ("decode", "output_tokens", "placed_ms", "prefill", "seen_ms")

    def __init__(self, prefill: WorkerKey | None, decode: WorkerKey | None) -> None:
        self.prefill = prefill
        self.decode = decode
        self.placed_ms: float | None = None  # its last turn, there
        self.seen_ms: float | None = None
        self.output_tokens = 0.0


class _Arrival(msgspec.Struct, frozen=True):
    """A turn as it was recognised when it came."""

    ask: Ask
    asked_ms: float
    thread: _Thread
    new: bool
    first_call: bool
    allowed: frozenset[WorkerKey] | None


class _Flight(msgspec.Struct):
    ask: Ask
    sent: Sent
    first_call: bool
    asked_ms: float  # by the client, the first time


class Simulation:
    """`run` once. `tell` is called with the virtual seconds done, for a progress bar."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        settings: Settings,
        seed: int,
        cost: CostParams | None = None,
    ) -> None:
        roles = cluster.topology.roles()
        params = {key: cluster.engine_params(role) for key, role in roles.items()}
        belief = misjudge(cluster.truth, random.Random(f"{seed} belief"), settings.prior_error)
        self._agenda = Agenda()
        self._settings = settings
        self._workload = workload
        self._seed = seed
        self._policy = policy
        self._cost = cost or CostParams()
        self._hindsight = Hindsight(settings.hindsight_share, seed)
        self._rng = random.Random(f"{seed} policy")
        l2 = any(each.host_kv_tokens for each in params.values())
        l3 = _shared_pool(cluster, workload.page_tokens, own_node=settings.own_node > 0)
        most = len(roles) + len(settings.churn)
        self._view = View(
            roles,
            belief,
            page_tokens=workload.page_tokens,
            l2=l2,
            l3=l3 is not None,
            own_node=settings.own_node > 0 and not settings.prefetch,
            max_workers=most,
            predict=settings.predict_on_route,
        )
        self._cluster = cluster
        listener = Listener(self._prefilled, self._first_token, self._finished, self._published, self._pooled)
        self._engines = EnginePool(params, self._agenda, listener, l3)
        self._hold = Hold(settings.hold_ms, lambda: self._agenda.now_ms, self._agenda.after)
        self._prefetching: Prefetching | None = None
        if settings.prefetch and l3 is not None:
            if cluster.ssd_pages:
                raise ValueError("prefetch is not simulated with SSDs")
            triggered = PrefetchParams(triggers=settings.prefetch)
            self._prefetching = Prefetching(self._agenda, self._view, self._engines, policy, triggered, self._hold.freed)
        until_ms = settings.horizon_s * 1000
        self._clients = Clients(self._agenda, self._send, until_ms=until_ms, rota=settings.rota, gap_factor=settings.gap_factor)
        prefills = [key for key, role in roles.items() if role is not Role.DECODE]
        self._allowance = Allowance(prefills, settings, seed)
        self._threads: dict[str, _Thread] = {}
        self._outputs = OutputRates()
        self._flights: dict[str, _Flight] = {}
        self._turns = 0
        self._given_up = self._rerouted = self._broken = 0
        self._served: list[Served] = []
        self._decisions: list[tuple[float, str, WorkerKey, WorkerKey]] = []

    def run(self, tell: Callable[[float], None] | None = None) -> Outcome:
        settings, agenda = self._settings, self._agenda
        until_ms = settings.horizon_s * 1000
        if settings.concurrency:
            self._clients.closed_loop(self._plans(), settings.concurrency, settings.ramp_s * 1000)
        else:
            self._clients.open_loop(iter(self._workload.sessions))
        for i, key in enumerate(self._view.workers):
            agenda.at(i * settings.load_poll_ms / len(self._view.workers), self._poll, key, self._engines.models[key])
        for change in settings.churn:
            agenda.at(change.at_s * 1000, self._join if change.joins else self._lose, change)
        told_ms = 0.0
        with self._hindsight.around():
            while agenda.now_ms < until_ms or (self._flights and agenda.now_ms < until_ms + _DRAIN_MS):
                agenda.step()
                if tell is not None and agenda.now_ms >= told_ms + 10_000 and not self._hindsight.in_copy:
                    told_ms = agenda.now_ms
                    tell(min(told_ms, until_ms) / 1000)
        moved = self._engines.moved_bytes()
        decisions, tallies = tuple(self._decisions), self._prefetching.tallies() if self._prefetching is not None else {}
        regrets = tuple(self._hindsight.regrets)
        return Outcome(
            tuple(self._served),
            until_ms,
            len(self._flights),
            self._given_up,
            moved,
            decisions,
            tallies,
            regrets,
            self._rerouted,
            self._broken,
        )

    def _plans(self) -> Iterator[SessionPlan]:
        """The sessions in an order of the seed's, each once: a trace that began anew would repeat page numbers that are still
        cached, and better fewer sessions than false hits."""
        order = list(self._workload.sessions)
        random.Random(f"{self._seed} clients").shuffle(order)
        return iter(order)

    def _poll(self, key: WorkerKey, engine: EngineModel) -> None:
        if self._engines.models.get(key) is not engine:
            return  # lost
        report = self._engines.report(key)
        self._agenda.after(self._settings.load_lag_ms, lambda: self._view.heard_load(key, report, self._agenda.now_ms))
        self._agenda.after(self._settings.load_poll_ms, self._poll, key, engine)

    def _published(self, key: WorkerKey, events: list[BlockEvent]) -> None:
        self._agenda.after(self._settings.event_lag_ms, lambda: self._view.heard_events(key, events, self._agenda.now_ms))

    def _pooled(self, node: str, event: BlockEvent) -> None:
        self._agenda.after(self._settings.event_lag_ms, self._view.heard_pool, node, event)

    def _join(self, change: Change) -> None:
        """A worker comes with empty caches; the gateway knows of it at once."""
        key = change.worker
        self._engines.join(key, self._cluster.engine_params(change.role))
        self._view.joined(key, change.role)
        if change.role is not Role.DECODE:
            self._allowance.joined(key)
            if self._prefetching is not None:
                self._prefetching.joined(key)
        self._poll(key, self._engines.models[key])

    def _lose(self, change: Change) -> None:
        """Its connections break, so that the gateway knows at once: what has not begun to stream is sent elsewhere, as in
        production; a broken stream is the client's to repeat."""
        key = change.worker
        lost = self._engines.lose(key)
        self._view.lost(key)
        self._allowance.lost(key)
        if self._prefetching is not None:
            self._prefetching.lost(key)
        for rid in lost:
            flight = self._flights.pop(rid)
            self._view.failed(flight.sent, self._agenda.now_ms)
            if flight.sent.first_ms:
                self._broken += 1
                self._agenda.after(_CLIENT_RETRY_MS, self._send, flight.ask, flight.asked_ms)
            else:
                self._rerouted += 1
                self._send(flight.ask, flight.asked_ms)

    def _send(self, ask: Ask, asked_ms: float | None = None) -> None:
        """The gateway recognises the turn. `asked_ms`: by the client, if not now."""
        now_ms = self._agenda.now_ms
        known = self._threads.get(ask.thread_id)
        thread = known or self._new_thread(ask)
        allowed, forced = self._allowance.of(ask, thread.prefill)
        idle = thread.seen_ms is not None and now_ms - thread.seen_ms > self._settings.resume_gap_s * 1000
        first_call = known is None or idle or ask.rotated or forced
        came = _Arrival(ask, now_ms if asked_ms is None else asked_ms, thread, known is None, first_call, allowed)
        worker = self._place(came, Standing.COMES)
        if worker is not None:
            self._hold.wait(worker, came.asked_ms, lambda standing: self._place(came, standing))

    def _place(self, came: _Arrival, standing: Standing) -> WorkerKey | None:
        """Locate, decide, book and dispatch; or the worker that it must wait for."""
        now_ms, ask, thread, first_call = self._agenda.now_ms, came.ask, came.thread, came.first_call
        call = ask.call
        pages = call.pages()
        routed = self._view.routed(pages)
        shared_tokens = max(routed.values(), default=0) if came.new else 0
        turn = Turn(
            ask.thread_id,
            call.prompt_tokens,
            round(thread.output_tokens or self._outputs.output_tokens),
            shared_tokens if thread.prefill is None else 0,
            thread.prefill,
            thread.decode,
            pages[shared_tokens // self._workload.page_tokens - 1] if shared_tokens else None,
        )
        served = (thread.prefill, thread.placed_ms) if thread.prefill and thread.placed_ms is not None else None
        fleet = self._view.fleet(
            pages, call.prompt_tokens, routed, now_ms, new_thread=came.new, served=served, allowed=came.allowed
        )
        chosen = self._policy.decide(turn, fleet, now_ms, self._rng).chosen
        if self._waits(ask.thread_id, fleet, chosen, standing):
            return chosen.prefill
        self._turns += 1
        rid = str(self._turns)
        if now_ms >= self._settings.warmup_s * 1000 and self._hindsight.wanted(f"{ask.thread_id} {ask.index}"):
            chosen = self._hindsight.choose(rid, chosen, runners_up(turn, chosen, fleet, self._cost))
        sent = Sent(self._turns, call.prompt_tokens, chosen, now_ms, sources=_read_from(fleet, chosen))
        self._decisions.append((now_ms, ask.thread_id, chosen.prefill, chosen.decode))
        self._flights[rid] = _Flight(ask, sent, first_call, came.asked_ms)
        self._view.placed(sent, pages)
        thread.prefill, thread.decode, thread.placed_ms = chosen.prefill, chosen.decode, now_ms
        if self._prefetching is not None:
            output = round(thread.output_tokens)
            self._prefetching.sent(ask.thread_id, Subject(pages, call.prompt_tokens, output, chosen.prefill, chosen.decode))
        self._dispatch(rid, ask, pages, chosen.prefill, chosen.decode)
        return None

    def _waits(self, thread: str, fleet: Fleet, chosen: Scored, standing: Standing) -> bool:
        """For room at the worker, or for pages that its engine does not reach."""
        worker = chosen.prefill
        waits = self._hold.must_wait(worker, self._view.ahead(worker, self._agenda.now_ms), standing)
        if self._prefetching is None:
            return waits
        away = self._engines.own_node and set(_read_from(fleet, chosen)) - {worker.worker_id}
        if standing is Standing.COMES and (waits or away):
            self._prefetching.held(thread, worker, full=waits)
        return waits or self._prefetching.fetches(thread, worker)

    def _dispatch(self, rid: str, ask: Ask, pages: list[int], prefill: WorkerKey, decode: WorkerKey) -> None:
        call = ask.call
        if prefill == decode:
            pages = reply_pages(call, ask.following, self._workload.page_tokens)
        limit = max(call.output_tokens, _CLIENT_LIMIT_TOKENS)
        request = EngineRequest(rid, call.prompt_tokens, call.output_tokens, limit, pages)
        self._engines.submit(request, prefill, decode)

    def _new_thread(self, ask: Ask) -> _Thread:
        """A thread that begins with its parent's history is a fork and starts where that was served; others start nowhere."""
        plan = ask.session.plan
        parent = plan.threads[ask.thread].parent
        origin = self._threads.get(plan.name) if parent is not None else None
        forked = origin is not None and parent is not None and ask.call.runs[:1] == plan.threads[parent].calls[0].runs[:1]
        thread = _Thread(origin.prefill, origin.decode) if origin is not None and forked else _Thread(None, None)
        self._threads[ask.thread_id] = thread
        return thread

    def _prefilled(self, rid: str, cached: Cached) -> None:
        sent = self._flights[rid].sent
        sent.cached = cached
        self._view.prefilled(sent, self._agenda.now_ms)
        if self._hold.waiting:
            self._agenda.at(self._agenda.now_ms, self._hold.freed, sent.chosen.prefill)
        if self._prefetching is not None:
            self._prefetching.served(self._flights[rid].ask.thread_id, sent.chosen.prefill, cached.tokens)

    def _first_token(self, rid: str, cached: Cached) -> None:
        self._view.begun(self._flights[rid].sent, self._agenda.now_ms)

    def _finished(self, rid: str, complete: bool) -> None:
        flight = self._flights.pop(rid)
        if complete:
            self._record(flight)
            sent, now_ms = flight.sent, self._agenda.now_ms
            self._hindsight.ended(rid, Fate(sent.first_ms - flight.asked_ms, now_ms - flight.asked_ms))
        else:
            self._given_up += 1
            self._view.abandoned(flight.sent, self._agenda.now_ms)
        self._clients.done(flight.ask)

    def _record(self, flight: _Flight) -> None:
        ask, sent, now_ms = flight.ask, flight.sent, self._agenda.now_ms
        output_tokens = ask.call.output_tokens
        self._view.finished(sent, output_tokens, now_ms)
        thread = self._threads[ask.thread_id]
        thread.seen_ms = now_ms
        thread.output_tokens = blend(thread.output_tokens, output_tokens)
        self._outputs.learn_output(output_tokens)
        if self._prefetching is not None:
            self._prefetching.ended(ask.thread_id, sent.chosen.prefill, output_tokens)
        terms = sent.chosen.terms
        disk = min(sent.cached.storage, self._engines.take_disk_tokens(str(sent.turn)))
        self._served.append(
            Served(
                flight.asked_ms,
                sent.first_ms,
                now_ms,
                sent.prompt_tokens,
                output_tokens,
                sent.cached.device,
                sent.cached.host,
                sent.cached.storage - disk,
                disk,
                flight.first_call,
                sent.chosen.prefill,
                sent.chosen.decode,
                terms.ttft_ms,
                terms.total_ms,
            )
        )


def _shared_pool(cluster: Cluster, page_tokens: int, *, own_node: bool) -> L3 | None:
    if not cluster.pool_pages:
        return None
    truth = cluster.truth
    ssd = Ssd(cluster.ssd_pages, truth.ssd) if cluster.ssd_pages else None
    page_bytes = truth.kv_bytes_per_token * page_tokens
    return L3(cluster.pool_pages, page_bytes, cluster.pool_local, truth.pool_remote, ssd, own_node)


def _read_from(fleet: Fleet, chosen: Scored) -> tuple[str, ...]:
    """The nodes of the pool that the chosen prefill reads from."""
    for prefill in fleet.prefills:
        if prefill.worker == chosen.prefill and prefill.sources:
            return tuple({run.source: None for run in prefill.residency.runs if run.source and run.start < chosen.cut_tokens})
    return ()
