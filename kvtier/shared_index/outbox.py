"""What one gateway has learned and the others have not been told yet: changes to the same block become one. Bounded.

Where it overflows, the source's whole picture is given up and begun anew: the others know less then, never something false.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvtier.index.source_key import SourceKey
from kvtier.shared_index.holdings import Change

Changes = dict[SourceKey, dict[int, Change]]


class Parcel(msgspec.Struct):
    """Empty these sources, then make these changes, then forget these sources."""

    cleared: set[SourceKey] = msgspec.field(default_factory=set)
    changes: Changes = msgspec.field(default_factory=dict)
    dropped: set[SourceKey] = msgspec.field(default_factory=set)

    @property
    def empty(self) -> bool:
        return not (self.cleared or self.changes or self.dropped)


class Outbox:
    def __init__(self, max_changes: int = 200_000) -> None:
        self.overflows = 0
        self._max_changes = max_changes
        self._parcel = Parcel()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def note(self, source: SourceKey, blocks: Iterable[int], change: Change) -> None:
        changes = self._parcel.changes.setdefault(source, {})
        before = len(changes)
        for block in blocks:
            earlier = changes.get(block)
            changes[block] = change if earlier is None else earlier.then(change)
        self._size += len(changes) - before
        if source in self._parcel.dropped:  # it is back, with nothing of what it had
            self._parcel.dropped.remove(source)
            self._parcel.cleared.add(source)
        if self._size > self._max_changes:
            self.overflows += 1
            for each in list(self._parcel.changes):
                self.clear(each)

    def clear(self, source: SourceKey) -> None:
        self._forget(source)
        self._parcel.cleared.add(source)

    def drop(self, source: SourceKey) -> None:
        self._forget(source)
        self._parcel.dropped.add(source)

    def take(self) -> Parcel:
        """All there is; give it back if it could not be delivered."""
        parcel, self._parcel, self._size = self._parcel, Parcel(), 0
        return parcel

    def give_back(self, parcel: Parcel) -> None:
        """What came since is newer."""
        newer = self.take()
        self._parcel = parcel
        self._size = sum(map(len, parcel.changes.values()))
        for source in newer.cleared:
            self.clear(source)
        for source, changes in newer.changes.items():
            for block, change in changes.items():
                self.note(source, (block,), change)
        for source in newer.dropped:
            self.drop(source)

    def _forget(self, source: SourceKey) -> None:
        self._size -= len(self._parcel.changes.pop(source, ()))
