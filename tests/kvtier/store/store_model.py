"""Memory and SSD as dictionaries, and the pages, keys and stores that the store's tests share."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from kvtier.page.checksum import split_checksums
from kvtier.page.key import PageKey, page_key
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.store.actions import Action, Clear, Demote, Promote, Reclaim
from kvtier.store.node_store import NodeStore
from kvtier.store.page import NOWHERE, Page, SsdPlace
from kvtier.store.run import Run
from kvtier.store.settings import DramSettings, SsdSettings
from kvtier.store.slabs import class_bytes

KIB = 1024
SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
ALICE, BOB = 1, 2


def digest(number: int) -> bytes:
    return sha256(number.to_bytes(8, "little")).digest()


def checksum(number: int, variant: int = 0) -> bytes:
    return sha256(f"{number}/{variant}".encode()).digest()[:16]


def make_store(
    *, pages: int = 8, slab_pages: int = 4, ssd: SsdSettings | None = None, epoch: int = 7, **dram: object
) -> tuple[NodeStore, list[PageKey]]:
    """A store of `pages` slots of 4 KiB, and the keys of 64 pages of SPACE."""
    slab_bytes = slab_pages * 4 * KIB
    settings = DramSettings(bytes=pages * 4 * KIB, slab_bytes=slab_bytes, **dram)  # type: ignore[arg-type]
    store = NodeStore(settings, ssd, epoch)
    space = store.meet(SPACE)
    return store, [page_key(space, digest(number)) for number in range(64)]


def small_ssd(**settings: object) -> SsdSettings:
    """Segments of 4 pages, 4 segments."""
    return SsdSettings(**{"bytes": 64 * KIB, "segment_bytes": 16 * KIB, **settings})  # type: ignore[arg-type]


def put(store: NodeStore, key: PageKey, now_ms: float, *, length: int = 4096, variant: int = 0, depth: int = 0) -> Status:
    """Reserve and commit one page; its status where it needed no writing."""
    reserved = store.reserve([key], length, ALICE, now_ms, depth=depth)
    if reserved.statuses[0] is not Status.OK:
        return reserved.statuses[0]
    return store.commit(reserved.write_id, sha256(key + bytes([variant])).digest()[:16], ALICE, now_ms)


def status_of(store: NodeStore, key: PageKey, now_ms: float) -> Status:
    """Acquire and release at once."""
    acquired = store.acquire([key], BOB, 1000, now_ms)
    store.release(acquired.lease_id, BOB)
    return acquired.statuses[0]


class Seen(NamedTuple):
    """A page, looked at without telling its run apart."""

    key: PageKey
    offset: int
    length: int
    checksum: bytes
    place: SsdPlace | None
    evictable: bool
    queued: bool

    @property
    def in_dram(self) -> bool:
        return self.offset != NOWHERE


def seen(entries: Iterable[Page | Run]) -> list[Seen]:
    pages = []
    for entry in entries:
        state = (entry.evictable, bool(entry.ticket))
        if isinstance(entry, Page):
            pages.append(Seen(entry.key, entry.offset, entry.length, entry.checksum, entry.place, *state))
            continue
        for key, offset, checksum in zip(entry.keys, entry.offsets, split_checksums(entry.checksums), strict=True):
            pages.append(Seen(key, offset, entry.length, checksum, None, *state))
    return pages


class Disk:
    """Places for pages, segment by segment, as an append-only writer would choose them."""

    def __init__(self, segment_bytes: int, first_segment: int = 1) -> None:
        self.segment_bytes = segment_bytes
        self.bytes_at: dict[SsdPlace, bytes] = {}
        self._segment = first_segment
        self._end = 0

    def append(self, length: int, content: bytes) -> SsdPlace:
        if self._end + class_bytes(length) > self.segment_bytes:
            self._segment += 1
            self._end = 0
        place = SsdPlace(self._segment, self._end)
        self._end += class_bytes(length)
        self.bytes_at[place] = content
        return place

    def delete(self, segment: int) -> None:
        for place in [place for place in self.bytes_at if place.segment == segment]:
            del self.bytes_at[place]


def perform(store: NodeStore, disk: Disk, actions: list[Action]) -> None:
    """Do what a plan says, all of it well; contents are checksums."""
    for action in actions:
        if isinstance(action, Demote):
            for page in action.pages:
                store.tiering.demoted(page.generation, disk.append(page.length, page.checksum))
        elif isinstance(action, Promote):
            assert disk.bytes_at[action.place] == action.checksum
            store.tiering.promoted(action.write_id)
        elif isinstance(action, Reclaim):
            for kept in action.keep:
                store.tiering.kept(kept.key, action.segment, disk.append(kept.length, disk.bytes_at[kept.place]))
            disk.delete(action.segment)
            store.tiering.reclaimed(action.segment)
        elif isinstance(action, Clear):
            store.tiering.cleared()


def settle_all(store: NodeStore, disk: Disk, now_ms: float) -> None:
    """Tick and perform until nothing is left to do."""
    for _ in range(100):
        store.tick(now_ms)
        actions = store.plan(now_ms)
        if not actions:
            return
        perform(store, disk, actions)
    raise AssertionError("the store never runs out of plans")
