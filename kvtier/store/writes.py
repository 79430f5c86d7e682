"""Slots that are being written: from reservation to commit, abort or expiry.

An expired write loses its key at once, so that another may write the page, but not its bytes: its writer shares the memory and
may still be at it. The bytes come back when the writer speaks of the write again, when its connection ends, or after a
quarantine. (What a writer that outlives even that scribbles over is caught by the checksum.)
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import takewhile

import msgspec

from kvtier.page.key import PageKey
from kvtier.page.kind import PageKind


class Origin(Enum):
    CLIENT = auto()
    PEER = auto()
    SSD = auto()


class Write(msgspec.Struct, gc=False):
    id: int
    owner: int
    key: PageKey
    length: int
    offset: int
    deadline_ms: float
    kind: PageKind
    depth: int
    origin: Origin
    expired: bool = False


class Writes:
    """All writes of a node, in the order in which they were begun; their time to live is one for all."""

    def __init__(self, ttl_ms: float, quarantine_ms: float) -> None:
        self._ttl_ms = ttl_ms
        self._quarantine_ms = quarantine_ms
        self._open: dict[int, Write] = {}  # their deadlines ascend
        self._reads: dict[int, Write] = {}  # from SSD: the agent itself ends them
        self._of_key: dict[PageKey, Write] = {}
        self._quarantined: dict[int, Write] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._open) + len(self._reads) + len(self._quarantined)

    def begin(
        self, owner: int, key: PageKey, length: int, offset: int, kind: PageKind, depth: int, origin: Origin, now_ms: float
    ) -> Write:
        write = Write(self._next, owner, key, length, offset, now_ms + self._ttl_ms, kind, depth, origin)
        self._next += 1
        table = self._reads if origin is Origin.SSD else self._open
        table[write.id] = self._of_key[key] = write
        return write

    def of_key(self, key: PageKey) -> Write | None:
        """Who is writing the page now."""
        return self._of_key.get(key)

    def take(self, write_id: int, owner: int) -> Write | None:
        """The owner's write, which then is no longer ours; look at `expired` before believing it."""
        write = self._open.get(write_id) or self._reads.get(write_id) or self._quarantined.get(write_id)
        if write is None or write.owner != owner:
            return None
        self._remove(write)
        return write

    def take_owner(self, owner: int) -> list[Write]:
        """All writes of an owner that has gone."""
        gone = [write for table in (self._open, self._quarantined) for write in table.values() if write.owner == owner]
        for write in gone:
            self._remove(write)
        return gone

    def expire(self, now_ms: float) -> int:
        """Quarantine the writes whose time is up; how many."""
        oldest = next(iter(self._open.values()), None)
        if oldest is None or oldest.deadline_ms > now_ms:
            return 0
        expired = list(takewhile(lambda write: write.deadline_ms <= now_ms, self._open.values()))
        for write in expired:
            self._remove(write)
            write.expired = True
            write.deadline_ms = now_ms + self._quarantine_ms
            self._quarantined[write.id] = write
        return len(expired)

    def take_released(self, now_ms: float) -> list[Write]:
        """Writes whose quarantine is over: their bytes may be used again."""
        released = [write for write in self._quarantined.values() if write.deadline_ms <= now_ms]
        for write in released:
            self._remove(write)
        return released

    def _remove(self, write: Write) -> None:
        if self._open.pop(write.id, None) is None and self._reads.pop(write.id, None) is None:
            self._quarantined.pop(write.id, None)
        if self._of_key.get(write.key) is write:
            del self._of_key[write.key]
