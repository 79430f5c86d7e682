"""The prefetch planner in the simulated gateway: it hears what production tells it, and its moves are done in virtual time.

Subjects are threads; what is known of one is the prompt of its last call. Nothing here knows a plan or the future.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf

import msgspec

from bench.simulate.agenda import Agenda
from bench.simulate.engines import EnginePool
from bench.simulate.view import View
from costmodel.policies.base import Policy
from costmodel.terms import queue_ms
from costmodel.values import Fleet, Prefill, Tier, Turn, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.destination import margin_ms
from kvtier.prefetch.events import Event, FailReason
from kvtier.prefetch.moves import CancelMove, Move, Stage, Warm
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, LinkState, NodeState, Path, Place, Target

_CLIENT, _TOOL = "sim", "tool"
_MAX_SUBJECTS = 16_384
_APPEND_TOKENS = 512  # that a next turn is expected to add beyond the last reply
_REUSED_SHARE = 0.3  # of evicted KV that would have been used again, as production assumes


class Subject(msgspec.Struct):
    """A thread as it was last asked for."""

    pages: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    prefill: WorkerKey
    decode: WorkerKey


class Prefetching:
    """`served` counts bytes that warm requests brought up. One planner for the pool."""

    def __init__(
        self,
        agenda: Agenda,
        view: View,
        engines: EnginePool,
        policy: Policy,
        params: PrefetchParams,
        released: Callable[[WorkerKey], None],
    ) -> None:
        """`released`: turns that waited for their pages may go to this worker now."""
        self._released = released
        self._agenda = agenda
        self._view = view
        self._engines = engines
        self._policy = policy
        self._planner = Planner(params)
        self._subjects: OrderedDict[str, Subject] = OrderedDict()
        self._rng = random.Random(0)  # a forecast must not move the real generator
        self._tick_ms: float | None = None
        self._warms: dict[int, tuple[WorkerKey, str]] = {}  # by move: the engine's request

    def sent(self, thread: str, subject: Subject) -> None:
        self._subjects[thread] = subject
        self._subjects.move_to_end(thread)
        if len(self._subjects) > _MAX_SUBJECTS:
            self._subjects.popitem(last=False)
        self._plan(ev.Sent(thread, subject.prefill, _CLIENT))

    def held(self, thread: str, worker: WorkerKey, *, full: bool) -> None:
        """It has come, and waits in the gateway, for room there or for its pages."""
        self._plan(ev.Held(thread, worker, _CLIENT, full))

    def fetches(self, thread: str, worker: WorkerKey) -> bool:
        return self._planner.fetches(thread, worker, self._agenda.now_ms)

    def served(self, thread: str, worker: WorkerKey, restored_tokens: int) -> None:
        """Its prefill is over."""
        self._plan(ev.Prefilled(thread))
        self._plan(ev.Served(thread, worker, restored_tokens))

    def ended(self, thread: str, worker: WorkerKey, output_tokens: int) -> None:
        if (subject := self._subjects.get(thread)) is not None:
            subject.output_tokens = output_tokens
        self._plan(ev.Ended(thread, worker, _TOOL, _CLIENT))

    def lost(self, worker: WorkerKey) -> None:
        """With its node, as the view knows: what was on its way there ends, what was to come from there is computed."""
        self._plan(ev.NodeLost(worker.worker_id))

    def joined(self, worker: WorkerKey) -> None:
        """Empty, as the view knows: threads which would now be placed there may bring their KV."""
        self._plan(ev.ScaledOut(worker))

    def tallies(self) -> dict[str, dict[str, float]]:
        return {trigger.value: msgspec.to_builtins(tally) for trigger, tally in self._planner.tallies.items()}

    # what the planner asks

    def target(self, subject: str, worker: WorkerKey | None) -> Target | None:
        known = self._subjects.get(subject)
        if known is None:
            return None
        prompt_tokens = known.prompt_tokens + known.output_tokens + _APPEND_TOKENS
        fleet = self._view.fleet(known.pages, prompt_tokens, {}, self._agenda.now_ms, new_thread=False)
        key, margin = (worker, inf) if worker is not None else self._choose(subject, known, prompt_tokens, fleet)
        prefill = next((each for each in fleet.prefills if each.worker == key), None)
        return None if prefill is None else self._target(prefill, known, prompt_tokens, fleet.kv_bytes_per_token, margin)

    def link(self, path: Path) -> LinkState:
        return LinkState(self._view.pool_link(path.source, path.target))

    def node(self, node: str) -> NodeState:
        pages = self._engines.free_pages(node)
        rates = self._view.prefill_rates(node, self._agenda.now_ms)
        harm = 0.0 if pages else _REUSED_SHARE * rates.ms_per_token / self._view.kv_bytes_per_token
        return NodeState(int(pages * self._engines.page_bytes), harm)

    def changes(self, worker: WorkerKey) -> int:
        return self._view.applied(worker)

    def _choose(self, thread: str, known: Subject, prompt_tokens: int, fleet: Fleet) -> tuple[WorkerKey, float]:
        """Where the policy would send it, and how much dearer the next candidate is. Every worker is a node of its own."""
        turn = Turn(thread, prompt_tokens, max(1, known.output_tokens), 0, known.prefill, known.decode)
        policy = copy.deepcopy(self._policy) if len(fleet.prefills) > 1 else self._policy
        decision = policy.decide(turn, fleet, self._agenda.now_ms, self._rng, explain=True)
        return decision.chosen.prefill, margin_ms(decision)

    def _target(self, prefill: Prefill, known: Subject, prompt_tokens: int, kv_bytes: float, margin: float) -> Target:
        own = self._view.pool_link(prefill.worker.worker_id, prefill.worker.worker_id)
        extents = tuple(
            Extent(run.start, run.tokens, (Place(run.source, Tier.L3),))
            if run.source
            else Extent(run.start, run.tokens, (), run.tier)
            for run in prefill.residency.runs
        )
        return Target(
            prefill.worker,
            prefill.worker.worker_id,
            prompt_tokens,
            len(known.pages) * self._view.page_tokens,
            extents,
            prefill.rates,
            {**prefill.restore, Tier.L3: own},
            kv_bytes,
            page_tokens=self._view.page_tokens,
            queue_ms=queue_ms(prefill.load, prefill.rates),
            waiting_turns=prefill.load.waiting_requests,
            warmable=True,
            device_tokens=prefill.load.kv_tokens_capacity,
            reads_remote=not self._engines.own_node,
            margin_ms=margin,
        )

    # what it wants done

    def _plan(self, event: Event) -> None:
        now_ms = self._agenda.now_ms
        for move in self._planner.plan(event, self, now_ms):
            self._do(move)
        for worker in self._planner.take_released(now_ms):
            self._agenda.at(now_ms, self._released, worker)
        due_ms = self._planner.next_ms
        if due_ms is not None and (self._tick_ms is None or due_ms < self._tick_ms):
            self._tick_ms = max(due_ms, now_ms)
            self._agenda.at(self._tick_ms, self._tick, self._tick_ms)

    def _tick(self, due_ms: float) -> None:
        if self._tick_ms == due_ms:
            self._tick_ms = None
            self._plan(ev.Tick())

    def _do(self, move: Move) -> None:
        """Leases change nothing here: L3 keeps what was lately looked up; a copy that is taken back arrives all the same."""
        if isinstance(move, Stage):
            self._stage(move)
        elif isinstance(move, Warm):
            self._warm(move)
        elif isinstance(move, CancelMove) and move.move in self._warms:
            worker, rid = self._warms.pop(move.move)
            self._view.warming(worker, -1)
            self._engines.unwarm(worker, rid)

    def _stage(self, move: Stage) -> None:
        known = self._subjects.get(move.subject)
        page = self._view.page_tokens
        pages = [] if known is None else known.pages[move.start // page : -(-(move.start + move.tokens) // page)]
        if not pages:
            self._later(self._agenda.now_ms, ev.MoveFailed(move.move, FailReason.NO_COPY))
            return
        done_ms = self._engines.stage(move.path.source, move.path.target, pages, move.bytes_per_ms)
        self._later(done_ms, ev.MoveEnded(move.move, move.size_bytes))

    def _warm(self, move: Warm) -> None:
        known = self._subjects.get(move.subject)
        pages = [] if known is None else list(known.pages[: move.tokens // self._view.page_tokens])
        if not pages:
            self._later(self._agenda.now_ms, ev.MoveFailed(move.move, FailReason.REFUSED))
            return
        rid = self._engines.warm(move.worker, pages, self._warmed(move))
        self._warms[move.move] = (move.worker, rid)
        self._view.warming(move.worker, 1)

    def _warmed(self, move: Warm) -> Callable[[], None]:
        def ended() -> None:
            if self._warms.pop(move.move, None) is not None:
                self._view.warming(move.worker, -1)
            self._later(self._agenda.now_ms, ev.MoveEnded(move.move, move.size_bytes))

        return ended

    def _later(self, when_ms: float, event: Event) -> None:
        """Never within `plan` itself."""
        self._agenda.at(when_ms, self._plan, event)
