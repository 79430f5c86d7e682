"""How many blocks each source has told of storing in each tier and of removing from it: is its cache full, and how fast does
it turn.

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
        self._counts: dict[SourceKey, dict[Tier, Counts]] = {}

    def count(self, source: SourceKey, event: BlockEvent) -> None:
        if isinstance(event, BlocksStored):
            self._add(source, event.tier, Counts(stored=len(event.hashes)))
        elif isinstance(event, BlocksRemoved):
            removed = Counts(removed=len(event.hashes))
            for tier in (event.tier,) if event.tier is not None else tuple(self._counts.get(source, (Tier.L1,))):
                self._add(source, tier, removed)

    def of(self, source: SourceKey, tier: Tier) -> Counts | None:
        """None where nothing was ever told."""
        return self._counts.get(source, {}).get(tier)

    def forget(self, source: SourceKey) -> None:
        self._counts.pop(source, None)

    def _add(self, source: SourceKey, tier: Tier, more: Counts) -> None:
        counts = self._counts.setdefault(source, {})
        before = counts.get(tier, NOTHING)
        counts[tier] = Counts(before.stored + more.stored, before.removed + more.removed)
