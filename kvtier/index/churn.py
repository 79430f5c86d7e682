"""How many blocks each source has told of storing in L1 and of removing from it: is its cache full, and how fast does it turn.

Counters only grow; who reads them twice knows what happened between. Repeated stores count as often as they are told.
"""

from __future__ import annotations

from typing import NamedTuple

from costmodel.values import Tier
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.source_key import SourceKey


class Counts(NamedTuple):
    """In blocks."""

    stored: int = 0
    removed: int = 0


NOTHING = Counts()


class Churn:
    def __init__(self) -> None:
        self._counts: dict[SourceKey, Counts] = {}

    def count(self, source: SourceKey, event: BlockEvent) -> None:
        if isinstance(event, BlocksStored):
            if event.tier is Tier.L1:
                stored, removed = self._counts.get(source, NOTHING)
                self._counts[source] = Counts(stored + len(event.hashes), removed)
        elif isinstance(event, BlocksRemoved) and (event.tier is None or event.tier is Tier.L1):
            stored, removed = self._counts.get(source, NOTHING)
            self._counts[source] = Counts(stored, removed + len(event.hashes))

    def of(self, source: SourceKey) -> Counts | None:
        """None where nothing was ever told."""
        return self._counts.get(source)

    def forget(self, source: SourceKey) -> None:
        self._counts.pop(source, None)
