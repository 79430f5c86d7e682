"""Slots that are being written: from reservation to commit, abort or expiry.

A write that is void, because it expired or its space was cleared, loses its keys at once, so that others may write the pages,
but not its bytes: its writer shares the memory and may still be at it. The bytes come back when the writer speaks of the write
again, when its connection ends, or after a quarantine. (What a writer that outlives even that scribbles over is caught by the
checksum.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import chain, takewhile

import msgspec

from kvtier.page.key import PageKey, PageKeys
from kvtier.page.kind import PageKind
from kvtier.store.run import Run


class Origin(Enum):
    CLIENT = auto()
    PEER = auto()
    SSD = auto()


class Write(msgspec.Struct):
    """Pages of one space and length that were reserved together, and are committed or dropped together, or void."""

    id: int
    owner: int
    keys: PageKeys
    length: int
    offsets: Sequence[int]
    deadline_ms: float
    kind: PageKind
    depths: Sequence[int]
    origin: Origin
    run: Run | None  # what they become: where they are neighbours, and none was anywhere on this node when it was begun
    void: bool = False  # nothing of it may be stored


class Writes:
    """All writes of a node, in the order in which they were begun; their time to live is one for all."""

    def __init__(self, ttl_ms: float, quarantine_ms: float) -> None:
        self._ttl_ms = ttl_ms
        self._quarantine_ms = quarantine_ms
        self._open: dict[int, Write] = {}  # their deadlines ascend
        self._reads: dict[int, Write] = {}  # from SSD: the agent itself ends them
        # Who writes what, of the two, but for void ones: large ones are few.
        self._single: dict[bytes, set[int]] = {}  # by space
        self._large: dict[int, Write] = {}
        self._quarantined: dict[int, Write] = {}  # void
        self._next = 1

    def __len__(self) -> int:
        """Pages."""
        return sum(len(write.keys) for write in self)

    def __iter__(self) -> Iterator[Write]:
        return chain(self._open.values(), self._reads.values(), self._quarantined.values())

    def begin(
        self,
        owner: int,
        keys: PageKeys,
        length: int,
        offsets: Sequence[int],
        kind: PageKind,
        depths: Sequence[int],
        origin: Origin,
        now_ms: float,
        run: Run | None = None,
    ) -> Write:
        """Nobody else writes any of `keys` now."""
        deadline_ms = now_ms + self._ttl_ms
        write = Write(self._next, owner, keys, length, offsets, deadline_ms, kind, depths, origin, run)
        self._next += 1
        table = self._reads if origin is Origin.SSD else self._open
        table[write.id] = write
        if len(keys) == 1:
            self._single.setdefault(keys.space, set()).update(keys.ids)
        else:
            self._large[write.id] = write
        return write

    def writing(self, key: PageKey) -> bool:
        """Whether someone writes the page now, or one with its id."""
        return self.writing_any(PageKeys.of([key]))

    def writing_any(self, keys: PageKeys) -> bool:
        """The same of many."""
        single = self._single.get(keys.space)
        if single and not single.isdisjoint(keys.distinct_ids):
            return True
        others = [write for write in self._large.values() if write.keys.space == keys.space]
        return any(not write.keys.distinct_ids.isdisjoint(keys.distinct_ids) for write in others)

    def get(self, write_id: int, owner: int) -> Write | None:
        """The owner's write; look at `void` before believing it."""
        write = self._open.get(write_id) or self._reads.get(write_id) or self._quarantined.get(write_id)
        return write if write is not None and write.owner == owner else None

    def take(self, write_id: int, owner: int) -> Write | None:
        """The same, and end it."""
        write = self.get(write_id, owner)
        if write is not None:
            self.end(write)
        return write

    def take_owner(self, owner: int) -> list[Write]:
        """All writes of an owner that has gone."""
        gone = [write for table in (self._open, self._quarantined) for write in table.values() if write.owner == owner]
        for write in gone:
            self.end(write)
        return gone

    def expire(self, now_ms: float) -> int:
        """Void the writes whose time is up; how many pages."""
        expired = list(takewhile(lambda write: write.deadline_ms <= now_ms, self._open.values()))
        for write in expired:
            self._quarantine(write, now_ms)
        return sum(len(write.keys) for write in expired)

    def void(self, space: bytes, now_ms: float) -> None:
        """Void what is being written of a space, by anyone."""
        for write in [write for write in self._open.values() if write.keys.space == space]:
            self._quarantine(write, now_ms)
        for write in self._reads.values():
            if write.keys.space == space and not write.void:
                self._void(write)

    def take_released(self, now_ms: float) -> list[Write]:
        """Writes whose quarantine is over: their bytes may be used again."""
        released = [write for write in self._quarantined.values() if write.deadline_ms <= now_ms]
        for write in released:
            self.end(write)
        return released

    def end(self, write: Write) -> None:
        """It is no longer ours; its bytes are the caller's to use or to give back."""
        if write.origin is Origin.SSD:
            del self._reads[write.id]
        else:
            del (self._quarantined if write.void else self._open)[write.id]
        if not write.void:
            self._forget(write)

    def _quarantine(self, write: Write, now_ms: float) -> None:
        del self._open[write.id]
        self._void(write)
        write.deadline_ms = max(write.deadline_ms, now_ms) + self._quarantine_ms
        self._quarantined[write.id] = write

    def _void(self, write: Write) -> None:
        write.void = True
        self._forget(write)

    def _forget(self, write: Write) -> None:
        """Its pages are not being written any more."""
        if self._large.pop(write.id, None) is None:
            self._single[write.keys.space].difference_update(write.keys.ids)
