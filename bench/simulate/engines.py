"""The pool's engine models in virtual time, with the hand-over between the halves of a pair. No gateway, no clients.

Both halves are sent at once, as a PD gateway does; the prefill engine starts when the decode engine has room, and the decode
engine when it has the KV. What the engines publish is handed on as it happens; who listens decides how late it hears.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from bench.simulate.agenda import Agenda
from bench.simulate.leaping_engine import LeapingEngine
from bench.simulate.shared_pool import NodePool, SharedPool, Ssd
from costmodel.values import Link, WorkerKey
from engine_adapters.base import LoadReport
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.model.load import EngineLoad
from engine_adapters.emulator.model.page_events import as_block_event
from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.model.request import (
    Allocated,
    Cached,
    EngineRequest,
    Finished,
    FinishReason,
    Outcome,
    Progress,
    Transferred,
)
from kvtier.index.events import BlockEvent


class Listener(msgspec.Struct):
    """What the engines tell. `rid` is the request's; times are the agenda's."""

    prefilled: Callable[[str, Cached], None]  # the prefill half is over, or a unified worker's first token is out
    first_token: Callable[[str, Cached], None]
    finished: Callable[[str, bool], None]  # False: the engine gave it up for want of memory
    published: Callable[[WorkerKey, list[BlockEvent]], None]
    pooled: Callable[[str, BlockEvent], None] = lambda node, event: None  # what a node's share of L3 gained or lost


class L3(msgspec.Struct, frozen=True):
    """The shared pool in truth: every prefill or unified worker's node holds a part of it."""

    node_pages: int
    page_bytes: float
    local: Link
    remote: Link
    ssd: Ssd | None = None  # of every node: L4
    own_node: bool = False  # engines read their own node's part alone


class EnginePool:
    """Raises ValueError from `submit` as the engine model does: for a prompt that no engine could hold."""

    def __init__(
        self, params: Mapping[WorkerKey, EngineParams], agenda: Agenda, listener: Listener, l3: L3 | None = None
    ) -> None:
        self._agenda = agenda
        self._listener = listener
        self._l3 = l3
        self._pool: SharedPool | None = None
        if l3 is not None:
            page_tokens = next(iter(params.values())).page_tokens
            told, own = listener.pooled, l3.own_node
            self._pool = SharedPool((), l3.node_pages, page_tokens, l3.page_bytes, told, l3.ssd, own_node=own)
        self.models: dict[WorkerKey, EngineModel] = {}
        self._gone: list[EngineModel] = []  # they count no less for it
        self._due: dict[WorkerKey, float | None] = {}
        self._pairs: dict[str, tuple[WorkerKey, WorkerKey, int]] = {}  # prefill, decode, prompt tokens
        self._disk_tokens: dict[str, int] = {}
        self._transferred_tokens = 0
        self._warms: dict[str, Callable[[], None]] = {}
        self._warmed = 0
        for key, each in params.items():
            self.join(key, each)

    def join(self, key: WorkerKey, params: EngineParams) -> None:
        """A worker begins with empty caches; one that prefills brings its node's share of the pool."""
        node_pool = None
        if self._pool is not None and self._l3 is not None and params.role is not EngineRole.DECODE:
            self._pool.add(key.worker_id)
            node_pool = NodePool(self._pool, key.worker_id, self._l3.local, self._l3.remote)
        leaps = params.role is EngineRole.DECODE and not params.keeps_cache
        self.models[key] = LeapingEngine(params, node_pool) if leaps else EngineModel(params, node_pool)
        self._due[key] = None

    def lose(self, key: WorkerKey) -> list[str]:
        """A worker is gone with its node. The turns that cannot end now, in the order in which they were sent.

        A pair's turn can, once decode has its KV: then prefill has nothing more to do with it.
        """
        self._gone.append(self.models.pop(key))
        del self._due[key]
        lost = [
            rid for rid, (prefill, decode, _) in self._pairs.items() if decode == key or (prefill == key and self._early(rid))
        ]
        halves = [(other, rid) for rid in lost for other in self._pairs.pop(rid)[:2] if other in self.models]
        for other, rid in halves:
            self.models[other].abort(rid, self._agenda.now_ms)
        for other in dict.fromkeys(other for other, _ in halves):
            self._pump(other)
        if self._pool is not None:
            self._pool.lose(key.worker_id)
        return lost

    def _early(self, rid: str) -> bool:
        """Whether decode does not have the KV yet."""
        decode = self.models.get(self._pairs[rid][1])
        return decode is None or decode.stage(rid) in (Stage.PREALLOC, Stage.RECEIVING)

    def submit(self, request: EngineRequest, prefill: WorkerKey, decode: WorkerKey) -> None:
        """One turn, to one unified worker or to both halves of a pair."""
        now_ms = self._agenda.now_ms
        if self._pool is not None:
            self._pool.touch(request.pages)
        self._pairs[request.rid] = (prefill, decode, request.prompt_tokens)
        if prefill == decode:
            before = self._disk_pages_read
            self.models[prefill].submit(request, now_ms)
            self._note_disk(request.rid, before)
        else:
            half = msgspec.structs.replace(request, output_tokens=1, max_new_tokens=1, paired=True)
            self.models[prefill].submit(half, now_ms)
            self.models[decode].submit(msgspec.structs.replace(request, paired=True), now_ms)
            self._pump(decode)
        self._pump(prefill)

    def warm(self, key: WorkerKey, pages: Sequence[int], done: Callable[[], None]) -> str:
        """A request of one token that makes an engine restore `pages` to its device; `done` when it has, or has given up. Its
        name, for `unwarm`."""
        self._warmed += 1
        rid = f"warm{self._warmed}"
        self._warms[rid] = done
        tokens = len(pages) * self.models[key].params.page_tokens + 1
        self.models[key].submit(EngineRequest(rid, tokens, 1, 1, pages), self._agenda.now_ms)
        self._pump(key)
        return rid

    def unwarm(self, key: WorkerKey, rid: str) -> None:
        """Take a `warm` back where it stands; `done` is not called. What the engine has begun to read comes all the same.
        One whose worker was lost is gone with it."""
        if rid in self._warms and key not in self.models:
            del self._warms[rid]
        elif rid in self._warms:
            self._warms[rid] = _nothing
            self.models[key].abort(rid, self._agenda.now_ms)
            self._agenda.at(self._agenda.now_ms, self._pump, key)

    def stage(self, source: str, target: str, pages: Sequence[int], bytes_per_ms: float) -> float:
        """Move pages of the shared pool from one node's part to another's, no faster than told; when they are there."""
        assert self._pool is not None, "moves are planned only where there is a pool"
        return self._pool.move(source, target, pages, Link(0.0, bytes_per_ms), self._agenda.now_ms)

    def free_pages(self, node: str) -> int:
        return self._pool.free_pages(node) if self._pool is not None else 0

    def take_disk_tokens(self, rid: str) -> int:
        """How many tokens of its prompt the pool read from SSD for it; asked once."""
        return self._disk_tokens.pop(rid, 0)

    @property
    def _disk_pages_read(self) -> int:
        return self._pool.disk_pages_read if self._pool is not None else 0

    def _note_disk(self, rid: str, before: int) -> None:
        """An engine reads from the pool when its request comes, and for that one alone."""
        if pages := self._disk_pages_read - before:
            prefill = self._pairs[rid][0]
            self._disk_tokens[rid] = pages * self.models[prefill].params.page_tokens

    @property
    def own_node(self) -> bool:
        """Engines read their own node's part of the pool alone."""
        return self._l3 is not None and self._l3.own_node

    @property
    def page_bytes(self) -> float:
        return self._pool.page_bytes if self._pool is not None else 0.0

    def report(self, key: WorkerKey) -> LoadReport:
        """What `/v1/loads` would say now."""
        model = self.models[key]
        if isinstance(model, LeapingEngine):
            model.settle(self._agenda.now_ms)
            self._pump(key)
        return load_report(model.load(), model.params)

    def moved_bytes(self) -> dict[str, float]:
        """Bytes so far by the way they took."""
        models = [*self._gone, *self.models.values()]
        tokens = {
            "l1_to_l2": sum(model.counters.backed_up_tokens for model in models),
            "l2_to_l1": sum(model.counters.loaded_back_tokens for model in models),
            "prefill_to_decode": self._transferred_tokens,
        }
        per_token = models[0].params.kv_bytes_per_token
        moved = {way: float(count * per_token) for way, count in tokens.items()}
        return moved | self._pool.read_bytes if self._pool is not None else moved

    def _pump(self, key: WorkerKey) -> None:
        """Let one engine do everything due, hand it on, and come back when there is more."""
        model, now_ms = self.models.get(key), self._agenda.now_ms
        if model is None:
            return  # lost since it was to come back
        for outcome in model.advance(now_ms):
            self._tell(key, outcome)
        events = model.take_page_events()
        if events:
            page = model.params.page_tokens
            self._listener.published(key, [as_block_event(event, page) for event in events])
        due_ms = model.next_event_ms()
        if due_ms is not None and due_ms != self._due[key]:
            self._due[key] = due_ms
            self._agenda.at(max(due_ms, now_ms), self._wake, key, due_ms)

    def _wake(self, key: WorkerKey, due_ms: float) -> None:
        if self._due.get(key) == due_ms:
            self._due[key] = None
            self._pump(key)

    def _tell(self, key: WorkerKey, outcome: Outcome) -> None:
        kind = type(outcome)
        if outcome.rid in self._warms:
            if kind is Finished:
                self._agenda.at(self._agenda.now_ms, self._warms.pop(outcome.rid))
        elif kind is Progress:
            if outcome.output_tokens == 1:  # type: ignore[union-attr]
                self._first(key, outcome.rid, outcome.cached)  # type: ignore[union-attr]
        elif isinstance(outcome, Allocated):
            if outcome.rid not in self._pairs:
                return  # its other half was lost just now
            prefill, _, prompt_tokens = self._pairs[outcome.rid]
            self._transferred_tokens += prompt_tokens - outcome.resident_tokens
            before = self._disk_pages_read
            self.models[prefill].pair(outcome.rid, self._agenda.now_ms, outcome.resident_tokens)
            self._note_disk(outcome.rid, before)
            self._pump(prefill)
        elif isinstance(outcome, Transferred):
            self._listener.prefilled(outcome.rid, outcome.cached)
            decode = self._pairs[outcome.rid][1]
            self.models[decode].receive(outcome.rid, self._agenda.now_ms, outcome.cached)
            self._pump(decode)
        elif isinstance(outcome, Finished):
            self._ended(key, outcome)

    def _ended(self, key: WorkerKey, outcome: Finished) -> None:
        """The prefill half says nothing that `Transferred` has not said; its word may come after the whole turn's end."""
        pair = self._pairs.get(outcome.rid)
        if pair is not None and pair[1] == key:
            del self._pairs[outcome.rid]
            self._listener.finished(outcome.rid, outcome.reason is FinishReason.DONE)

    def _first(self, key: WorkerKey, rid: str, cached: Cached) -> None:
        if self.models[key].params.role is EngineRole.PREFILL:
            return  # the client hears the decode half
        if self.models[key].params.role is EngineRole.UNIFIED:
            self._listener.prefilled(rid, cached)
        self._listener.first_token(rid, cached)


def _nothing() -> None:
    """Nobody waits for it any more."""


def load_report(load: EngineLoad, params: EngineParams) -> LoadReport:
    """As the emulator's `/v1/loads` tells it and the SGLang adapter reads it."""
    counters = load.counters
    waiting = load.queue(Stage.WAITING)
    hand_over = sum(load.queue(stage).requests for stage in (Stage.BOOTSTRAP, Stage.PREALLOC, Stage.RECEIVING))
    uncached = int(waiting.tokens * (1.0 - counters.hit_rate)) + load.chunk_left_tokens
    return LoadReport(
        dp_rank=0,
        running_requests=load.running,
        waiting_requests=waiting.requests + hand_over,
        waiting_uncached_tokens=0 if params.role is EngineRole.DECODE else uncached,
        kv_tokens_used=load.held_tokens,
        kv_tokens_capacity=params.kv_tokens,
        max_running_requests=params.max_running,
        prefill_uncached_tokens_total=counters.prefill_tokens,
        prefill_busy_us_total=int(counters.prefill_busy_ms * 1000),
        transfer_bytes_per_ms=counters.transfer_bytes_per_ms or None,
        transfer_latency_ms=counters.transfer_ms or None,
    )
