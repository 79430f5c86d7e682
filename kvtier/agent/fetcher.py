"""Brings pages of another node into this node's DRAM: leased there, claimed here, moved, checked, committed.

Whatever goes wrong leaves nothing behind: claims are given back only when nobody writes to them any more, which may be after
the fetch has ended, and the lease at the peer ends by release, or by its deadline if the peer cannot be told.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from kvtier.agent.progress import Progress
from kvtier.page.checksum import bound_checksums, split_checksums
from kvtier.page.key import DIGEST_BYTES, PageKey, PageKeys, digest_of
from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.pool.dram_pool import DramPool
from kvtier.store.answers import Reserved
from kvtier.store.node_store import NodeStore
from kvtier.store.slabs import PageTooLarge
from kvtier.store.tiering import SELF
from kvtier.store.writes import Origin
from kvtier.transport.links import PeerLinks
from kvtier.transport.page_reader import PageReader, RemotePage
from kvtier.transport.peer_link import PeerLink, PeerRefused, PeerUnavailable
from kvtier.wire.leased_pages import leased_pages
from kvtier.wire.messages import Acquire, Acquired, MessageError, Peer, Release, Report

log = logging.getLogger(__name__)

_RELEASE_DEADLINE_S = 1.0
_LEASE_SLACK_MS = 1000.0  # a lease should outlive the reading under it
_EARLY_S = 0.01
_READ_SLACK_S = 0.05  # a reader keeps the deadline itself, if it can
_T = TypeVar("_T")
_Granted = tuple[Acquired, Sequence[int]]


class FetchCounters(msgspec.Struct):
    fetched_pages: int = 0
    fetched_bytes: int = 0
    fetches_failed: int = 0  # calls to peers that came to nothing
    corrupt_received: int = 0
    fetch_crashes: int = 0  # faults of our own; should stay 0


class Fetched(msgspec.Struct, frozen=True):
    """One status a page: OK: in DRAM now; BUSY: not yet, or the peer is away; MISS, MOVED and CORRUPT as the peer said."""

    statuses: list[Status]
    fetched_bytes: int = 0
    over_budget: bool = False
    met_others: bool = False  # who write some of these pages here: those are BUSY


class _Claim(msgspec.Struct):
    """Bytes claimed here for one page of a lease there."""

    page: RemotePage
    position: int  # among the keys
    write_id: int
    offset: int  # of those bytes in the pool
    generation: int  # of the page there
    checksum: bytes


class _Leased(msgspec.Struct):
    """What a peer has leased to us."""

    link: PeerLink
    space: int
    lease: int
    digests: bytes
    claims: list[_Claim]
    statuses: list[Status]
    over_budget: bool = False
    met_others: bool = False


class Fetcher:
    """One per agent. `clock_ms` is the store's."""

    def __init__(
        self,
        store: NodeStore,
        pool: DramPool,
        links: PeerLinks,
        reader: PageReader,
        progress: Progress,
        clock_ms: Callable[[], float],
    ) -> None:
        self.counters = FetchCounters()
        self._store = store
        self._pool = pool
        self._links = links
        self._reader = reader
        self._progress = progress
        self._clock_ms = clock_ms
        self._behind: set[asyncio.Task[Any]] = set()  # what a fetch does not wait for

    async def close(self) -> None:
        """Every reading has ended, every lease is given back; fetches themselves belong to their callers."""
        if self._behind:
            await asyncio.wait(self._behind)

    async def fetch(
        self, space: PageSpace, digests: bytes, peer: Peer, deadline_ms: float, budget_bytes: int | None = None
    ) -> Fetched:
        """Until `deadline_ms` on the store's clock. Pages of a peer that fails are BUSY, and so are pages over the budget."""
        try:
            return await self._fetch(space, digests, peer, deadline_ms, budget_bytes)
        except asyncio.CancelledError:
            # Whoever asked keeps the same deadline, and a loop's timers may be early.
            self.counters.fetches_failed += self._left_s(deadline_ms) < _EARLY_S
            raise

    async def _fetch(
        self, space: PageSpace, digests: bytes, peer: Peer, deadline_ms: float, budget_bytes: int | None
    ) -> Fetched:
        pages = len(digests) // DIGEST_BYTES
        try:
            link = await self._links.to(peer)
            number = await link.attach(space, self._left_s(deadline_ms))
            acquiring = self._begin(self._acquire(link, number, digests, deadline_ms))
            acquired, found = await self._leased_or_given_back(link, acquiring)
        except (PeerUnavailable, PeerRefused) as error:
            self.counters.fetches_failed += 1
            log.info("fetching from %s failed: %s", peer.node, error)
            return Fetched([Status.BUSY] * pages)
        leased = _Leased(link, number, acquired.lease, digests, [], list(map(Status, acquired.statuses)))
        if not acquired.lease:
            return Fetched(leased.statuses)
        try:
            self._claim(leased, acquired, found, PageKeys(self._store.meet(space), digests), budget_bytes)
            moved_bytes = await self._move(leased, deadline_ms)
            return Fetched(leased.statuses, moved_bytes, leased.over_budget, leased.met_others)
        finally:
            self._begin(self._let_go(leased))

    async def _leased_or_given_back(self, link: PeerLink, acquiring: asyncio.Task[_Granted]) -> _Granted:
        """Given up while the peer has not answered yet, what it leases then is given back."""
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            self._begin(self._give_back(link, acquiring))
            raise

    async def _give_back(self, link: PeerLink, acquiring: asyncio.Task[_Granted]) -> None:
        try:
            acquired, _ = await acquiring
            if acquired.lease:
                await link.call(Release(acquired.lease), _RELEASE_DEADLINE_S)
        except (PeerUnavailable, PeerRefused) as error:
            log.info("releasing pages failed: %s", error)

    async def _acquire(self, link: PeerLink, space: int, digests: bytes, deadline_ms: float) -> _Granted:
        """What the peer has, and which pages it leased; half of the time may pass while it reads from its SSD."""
        left_ms = 1000 * self._left_s(deadline_ms)
        request = Acquire(space, digests, left_ms + _LEASE_SLACK_MS, left_ms / 2, bound=True)
        acquired = await link.call(request, left_ms / 1000)
        if not isinstance(acquired, Acquired):
            raise PeerRefused(f"{type(acquired).__name__} is no answer to Acquire")
        try:
            found = leased_pages(acquired, len(digests) // DIGEST_BYTES)
            _check_places(acquired, link.greeting.pool_bytes if link.greeting is not None else 0)
        except MessageError as error:
            raise PeerRefused(f"no answer to Acquire: {error}") from error
        return acquired, found

    def _claim(
        self, leased: _Leased, acquired: Acquired, found: Sequence[int], keys: Sequence[PageKey], budget_bytes: int | None
    ) -> None:
        """Bytes here for every page that is OK there and not here; the others' statuses become what they are here."""
        try:
            self._claim_each(leased, acquired, found, keys, budget_bytes)
        except BaseException:
            self._abort(leased.claims)
            raise

    def _claim_each(
        self, leased: _Leased, acquired: Acquired, found: Sequence[int], keys: Sequence[PageKey], budget_bytes: int | None
    ) -> None:
        left = budget_bytes
        checksums = split_checksums(bound_checksums(acquired.checksums, [digest_of(keys[position]) for position in found]))
        for index, position in enumerate(found):
            page = RemotePage(index, acquired.offsets[index], acquired.lengths[index])
            if left is not None and (left := left - page.length) < 0:
                leased.statuses[position], leased.over_budget = Status.BUSY, True
                continue
            reserved = self._reserve(keys[position], page.length, acquired.depths[index], PageKind(acquired.kinds[index]))
            leased.met_others = leased.met_others or reserved.statuses[0] is Status.WRITING
            leased.statuses[position] = Status.OK if reserved.statuses[0] is Status.EXISTS else Status.BUSY
            if reserved.statuses[0] is Status.OK:
                write_id, offset, generation = reserved.write_id, reserved.offsets[0], acquired.generations[index]
                leased.claims.append(_Claim(page, position, write_id, offset, generation, checksums[index]))

    def _reserve(self, key: PageKey, length: int, depth: int, kind: PageKind) -> Reserved:
        """A page that can never be kept here is BUSY for ever: the settings of both nodes disagree, which is logged."""
        try:
            return self._store.reserve([key], length, SELF, self._clock_ms(), depth=depth, kind=kind, origin=Origin.PEER)
        except (PageTooLarge, ValueError) as error:
            log.warning("a page of another node cannot be kept here: %s", error)
            return Reserved(0, [Status.BUSY], array("q"), 0.0)

    async def _move(self, leased: _Leased, deadline_ms: float) -> int:
        """Read, check and commit what is claimed; how many bytes. A reading that cannot be stopped in time settles later."""
        claims = leased.claims
        if not claims:
            return 0
        reading = self._begin(self._read(leased, self._left_s(deadline_ms)))
        try:
            await asyncio.wait({reading}, timeout=self._left_s(deadline_ms) + _READ_SLACK_S)
        finally:
            if not reading.done():
                reading.cancel()
        return sum(claim.page.length for claim in claims if leased.statuses[claim.position] is Status.OK)

    def _begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    async def _read(self, leased: _Leased, deadline_s: float) -> None:
        """Whatever happens no claim stays."""
        claims, targets = leased.claims, list[memoryview]()
        try:
            pages = [claim.page for claim in claims]
            targets += (self._pool.view(claim.offset, claim.page.length) for claim in claims)
            checksums = await self._reader.read(leased.link, leased.lease, pages, targets, deadline_s)
            for claim, checksum in zip(claims, checksums or (), strict=checksums is not None):
                leased.statuses[claim.position] = self._commit(claim, checksum)
        except (PeerUnavailable, PeerRefused) as error:
            self.counters.fetches_failed += 1
            log.info("reading pages failed: %s", error)
        except Exception:
            self.counters.fetch_crashes += 1
            log.exception("reading pages failed")
        finally:
            self._abort(claims)
            self._progress.made()
            for target in targets:
                target.release()  # an error that somebody keeps must not keep the pool's memory

    def _abort(self, claims: Sequence[_Claim]) -> None:
        """Give back what was not committed: what was is not known by its write any more."""
        for claim in claims:
            self._store.abort(claim.write_id, SELF)

    def _commit(self, claim: _Claim, checksum: bytes) -> Status:
        if checksum != claim.checksum:
            self.counters.corrupt_received += 1
            return Status.CORRUPT
        if self._store.commit(claim.write_id, checksum, SELF, self._clock_ms()) is not Status.OK:
            return Status.BUSY
        self.counters.fetched_pages += 1
        self.counters.fetched_bytes += claim.page.length
        return Status.OK

    async def _let_go(self, leased: _Leased) -> None:
        """Best effort: the lease ends by itself."""
        try:
            for claim in leased.claims:
                if leased.statuses[claim.position] is Status.CORRUPT:
                    start = claim.position * DIGEST_BYTES
                    report = Report(leased.space, leased.digests[start : start + DIGEST_BYTES], claim.generation)
                    await leased.link.call(report, _RELEASE_DEADLINE_S)
            await leased.link.call(Release(leased.lease), _RELEASE_DEADLINE_S)
        except (PeerUnavailable, PeerRefused) as error:
            log.info("releasing pages failed: %s", error)

    def _left_s(self, deadline_ms: float) -> float:
        return max(0.0, deadline_ms - self._clock_ms()) / 1000


def _check_places(acquired: Acquired, pool_bytes: int) -> None:
    """Raises `MessageError` for places and sizes that no page of such a pool has."""
    if min(acquired.lengths, default=1) < 1 or min((*acquired.offsets, *acquired.depths), default=0) < 0:
        raise MessageError("a page of no length, or at a place below the first")
    if any(offset + length > pool_bytes for offset, length in zip(acquired.offsets, acquired.lengths, strict=True)):
        raise MessageError(f"a page that ends behind the pool of {pool_bytes} bytes")
