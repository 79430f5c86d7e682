"""Answers requests: from wire messages to the store and back. Knows no sockets.

An `Answer` may carry pages to send behind it; they are held until `finished`. Requests that make no sense are `Refused`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from kvtier.agent.event_wire import to_wire
from kvtier.agent.leased_columns import acquired_message, packed_statuses
from kvtier.agent.owner import Owner, TooManySpaces
from kvtier.agent.progress import Progress
from kvtier.agent.stager import StageJob, Stager, StagesFull
from kvtier.agent.traffic import LOCAL, Traffic
from kvtier.page.checksum import page_checksum
from kvtier.page.key import PageKey, PageKeys, digest_of, page_key
from kvtier.page.status import Status
from kvtier.pool.dram_pool import DramPool
from kvtier.store.cuts import RestoreCuts
from kvtier.store.gathering import Gathering
from kvtier.store.node_store import NodeStore
from kvtier.store.page import Page
from kvtier.store.slabs import PageTooLarge
from kvtier.wire import messages as wire
from kvtier.wire.bounds import check_numbers

MAX_WAIT_MS = 60_000.0
_NOTE_CLEARS_MS = 1000.0

_REFUSED = (KeyError, ValueError, PageTooLarge, TooManySpaces, StagesFull)


class Answer(msgspec.Struct):
    reply: wire.Reply
    payload: list[memoryview] = []
    held: list[Page] = []


class Desk:
    """`pump` starts what the store plans, `numbers` collects what there is to tell; `clock_ms` is the store's.

    `memory` is what peers are told that read ours by a transfer engine.
    """

    def __init__(
        self,
        store: NodeStore,
        pool: DramPool,
        stager: Stager,
        progress: Progress,
        pump: Callable[[], None],
        numbers: Callable[[], dict[str, float]],
        clock_ms: Callable[[], float],
        traffic: Traffic,
        memory: wire.MemoryAt | None = None,
    ) -> None:
        self._store = store
        self._pool = pool
        self._stager = stager
        self._progress = progress
        self._pump = pump
        self._numbers = numbers
        self._clock_ms = clock_ms
        self._traffic = traffic
        self._memory = memory
        self._cuts = RestoreCuts()
        self._next_owner = 1
        self.asked_ms = 0.0  # when there was a request
        self._handlers: dict[type, Callable[[Owner, Any], Answer | wire.Reply | Awaitable[wire.Reply]]] = {
            wire.Attach: self._attach,
            wire.Look: self._look,
            wire.Acquire: self._acquire,
            wire.Release: self._release,
            wire.Renew: self._renew,
            wire.Reserve: self._reserve,
            wire.Commit: self._commit,
            wire.Abort: self._abort,
            wire.Report: self._report,
            wire.ReadPages: self._read_pages,
            wire.PinPages: self._pin,
            wire.Unpin: self._unpin,
            wire.TagPages: self._tag,
            wire.SetCut: self._set_cut,
            wire.Stage: self._stage,
            wire.AskStage: self._ask_stage,
            wire.CancelStage: self._cancel_stage,
            wire.ReplayEvents: self._replay_events,
            wire.AskSpaces: self._ask_spaces,
            wire.AskStats: self._ask_stats,
            wire.Clear: self._clear,
            wire.AskMemory: self._ask_memory,
        }

    def enter(self) -> Owner:
        """A new connection."""
        owner = Owner(self._next_owner)
        self._next_owner += 1
        return owner

    def leave(self, owner: Owner) -> None:
        """It has gone, and with it its leases and unfinished writes."""
        self._store.close_owner(owner.number)
        self._progress.made()
        self._pump()

    def answer(self, owner: Owner, request: wire.Request) -> Answer | Coroutine[Any, Any, Answer]:
        """At once, or awaited where it takes time. Every answer must be `finished`."""
        self.asked_ms = self._clock_ms()
        try:
            check_numbers(request)
            found = self._handlers[type(request)](owner, request)
        except _REFUSED as error:
            return _refusal(error)
        if isinstance(found, Answer):
            return found
        return Answer(found) if isinstance(found, wire.Message) else _awaited(found)

    def finished(self, answer: Answer) -> None:
        """It was sent, or never will be."""
        self._store.tiering.unhold_all(answer.held)

    def _attach(self, owner: Owner, request: wire.Attach) -> wire.Reply:
        return wire.Attached(owner.name(request.space, self._store.meet(request.space)))

    def _look(self, owner: Owner, request: wire.Look) -> wire.Reply:
        keys = self._keys(owner, request.space, request.digests)
        now_ms = self._clock_ms()
        allowed = self._cuts.limit(request.worker, map(digest_of, keys), len(keys), now_ms)
        found = self._store.leading(keys[:allowed], now_ms)
        if found.local > found.dram:
            self._pump()
        return wire.Looked(found.dram, found.local)

    def _acquire(self, owner: Owner, request: wire.Acquire) -> wire.Reply | Awaitable[wire.Reply]:
        keys = self._keys(owner, request.space, request.digests)
        if request.wait_ms > 0 and self._store.lacks_any(keys):
            return self._acquire_later(owner, keys, request)
        return self._acquired(owner, keys, request)

    async def _acquire_later(self, owner: Owner, keys: Sequence[PageKey], request: wire.Acquire) -> wire.Reply:
        gathering = Gathering()
        try:
            await self._wait_for(keys, min(request.wait_ms, MAX_WAIT_MS), gathering)
            return self._acquired(owner, keys, request)
        finally:
            self._store.let_go(gathering)

    def _acquired(self, owner: Owner, keys: Sequence[PageKey], request: wire.Acquire) -> wire.Reply:
        acquired = self._store.acquire(keys, owner.number, request.ttl_ms, self._clock_ms())
        if acquired.statuses.count(Status.OK) < len(keys):
            self._pump()
        return acquired_message(acquired, bound=request.bound)

    async def _wait_for(self, keys: Sequence[PageKey], wait_ms: float, gathering: Gathering) -> None:
        """Until nothing of `keys` is on its way any more, or can be."""
        until_ms = self._clock_ms() + wait_ms
        while (left_ms := until_ms - self._clock_ms()) > 0 and self._store.gather(keys, gathering):
            self._pump()
            if self._store.tiering.starved:
                return
            await self._progress.wait(left_ms / 1000)

    def _release(self, owner: Owner, request: wire.Release) -> wire.Reply:
        lease = self._store.release(request.lease, owner.number)
        if lease is not None and request.read_bytes:
            held_ms = self._clock_ms() - lease.granted_ms
            self._traffic.told(LOCAL, min(request.read_bytes, lease.covered_bytes), min(request.busy_ms, held_ms))
        return wire.Done()

    def _renew(self, owner: Owner, request: wire.Renew) -> wire.Reply:
        renewed = self._store.renew(request.lease, owner.number, request.ttl_ms, self._clock_ms())
        return wire.Done(Status.OK if renewed else Status.MISS)

    def _reserve(self, owner: Owner, request: wire.Reserve) -> wire.Reply:
        keys = self._keys(owner, request.space, request.digests)
        reserved = self._store.reserve(
            keys, request.length, owner.number, self._clock_ms(), depth=request.depth, kind=request.kind
        )
        return wire.Reserved(
            reserved.write_id, packed_statuses(reserved.statuses), wire.Column(reserved.offsets), reserved.retry_after_ms
        )

    def _commit(self, owner: Owner, request: wire.Commit) -> wire.Reply:
        status = self._store.commit(request.write, request.checksums, owner.number, self._clock_ms())
        self._progress.made()
        self._pump()
        return wire.Done(status)

    def _abort(self, owner: Owner, request: wire.Abort) -> wire.Reply:
        self._store.abort(request.write, owner.number)
        self._progress.made()
        return wire.Done()

    def _report(self, owner: Owner, request: wire.Report) -> wire.Reply:
        """A reader's copy may be torn because its lease had ended, or because its own memory is broken: look at ours."""
        key = page_key(owner.named(request.space).digest, request.digest)
        page = self._store.catalog.get(key)
        if page is None or not page.in_dram or page.generation != request.generation:
            return wire.Done()
        if page_checksum(self._pool.view(page.offset, page.length)) == page.checksum:
            return wire.Done()
        self._store.corrupt(key, page.generation)
        return wire.Done(Status.CORRUPT)

    def _read_pages(self, owner: Owner, request: wire.ReadPages) -> Answer:
        leased = self._store.leased_pages(request.lease, owner.number)
        if leased is None:
            return Answer(wire.Done(Status.MISS))
        pages = leased[request.first : request.first + request.count]
        if len(pages) != request.count or request.first < 0:
            raise ValueError(f"lease {request.lease} covers {len(leased)} pages")
        for page in pages:
            page.holds += 1
        views = [self._pool.view(page.offset, page.length) for page in pages]
        return Answer(wire.PagesSent([page.length for page in pages]), views, pages)

    def _pin(self, owner: Owner, request: wire.PinPages) -> wire.Reply:
        keys = self._keys(owner, request.space, request.digests)
        pinned = self._store.pin(keys, request.ttl_ms, self._clock_ms())
        self._pump()
        return wire.PagesPinned(pinned.status, pinned.pin_id, pinned.pages)

    def _unpin(self, owner: Owner, request: wire.Unpin) -> wire.Reply:
        return wire.Done(Status.OK if self._store.unpin(request.pin) else Status.MISS)

    def _tag(self, owner: Owner, request: wire.TagPages) -> wire.Reply:
        self._store.tag(self._keys(owner, request.space, request.digests), request.kind)
        return wire.Done()

    def _set_cut(self, owner: Owner, request: wire.SetCut) -> wire.Reply:
        self._cuts.set(request.worker, request.digest, request.ttl_ms, self._clock_ms())
        return wire.Done()

    def _stage(self, owner: Owner, request: wire.Stage) -> wire.Reply:
        space = owner.named(request.space).space
        return self._staging(
            self._stager.stage(space, request.digests, request.sources, request.deadline_ms, request.max_bytes, request.hold_ms)
        )

    def _ask_stage(self, owner: Owner, request: wire.AskStage) -> wire.Reply:
        job = self._stager.get(request.stage)
        return self._staging(job) if job else wire.Done(Status.MISS)

    def _cancel_stage(self, owner: Owner, request: wire.CancelStage) -> wire.Reply:
        self._stager.cancel(request.stage)
        return wire.Done()

    def _staging(self, job: StageJob) -> wire.Reply:
        leading, held = self._stager.leading(job), len(job.gathering.held)
        return wire.Staging(job.id, job.state.value, len(job.keys), leading, job.fetched_bytes, held)

    def _replay_events(self, owner: Owner, request: wire.ReplayEvents) -> wire.Reply:
        journal = self._store.journals.whole_spaces().get(request.space)
        if journal is None:
            raise KeyError(f"page space {request.space.hex()} is unknown here")
        return to_wire(self._store.journals.epoch, journal.since(request.seq))

    def _ask_spaces(self, owner: Owner, request: wire.AskSpaces) -> wire.Reply:
        journals = self._store.journals
        return wire.Spaces(journals.epoch, {digest: journal.space for digest, journal in journals.whole_spaces().items()})

    def _ask_stats(self, owner: Owner, request: wire.AskStats) -> wire.Reply:
        return wire.Stats(self._numbers())

    def _clear(self, owner: Owner, request: wire.Clear) -> wire.Reply | Awaitable[wire.Reply]:
        named = owner.named(request.space)
        self._stager.cancel_space(named.space)
        self._store.clear(named.digest)
        self._pump()
        return self._clear_noted() if self._store.unnoted_clears else wire.Done()

    async def _clear_noted(self) -> wire.Reply:
        until_ms = self._clock_ms() + _NOTE_CLEARS_MS
        while self._store.unnoted_clears and (left_ms := until_ms - self._clock_ms()) > 0:
            await self._progress.wait(left_ms / 1000)
        return wire.Done(Status.BUSY if self._store.unnoted_clears else Status.OK)

    def _ask_memory(self, owner: Owner, request: wire.AskMemory) -> wire.Reply:
        if self._memory is None or self._memory.engine != request.engine:
            ours = self._memory.engine if self._memory is not None else "tcp"
            raise ValueError(f"transport.engine is {ours} here and {request.engine} there: set the same on all nodes")
        return self._memory

    def _keys(self, owner: Owner, space: int, digests: bytes) -> PageKeys:
        return PageKeys(owner.named(space).digest, digests)


async def _awaited(reply: Awaitable[wire.Reply]) -> Answer:
    try:
        return Answer(await reply)
    except _REFUSED as error:
        return _refusal(error)


def _refusal(error: Exception) -> Answer:
    return Answer(wire.Refused(str(error.args[0] if error.args else error)))
