"""What a store of who holds which blocks must do, wherever it keeps that; and the one that keeps it in memory.

Semantics are those of `kvtier.index.memory`, but for one thing: a store does not count how often a block was stored, so that a
removal always removes. One conformance suite runs over every store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlockEvent
from kvtier.index.memory import BlockIndex
from kvtier.index.runs import Match
from kvtier.index.source_key import SourceKey


class StoreUnavailable(Exception):
    """The store cannot be reached, or did not answer in time. What it holds counts as missing."""


class IndexStore(Protocol):
    """Every method may raise `StoreUnavailable`; times are ms of one clock that all users of the store share."""

    async def apply(self, source: SourceKey, event: BlockEvent, now_ms: float) -> None: ...

    async def assume(self, source: SourceKey, hashes: Iterable[int], tier: Tier, now_ms: float) -> None: ...

    async def refute(self, source: SourceKey, hashes: Iterable[int]) -> None: ...

    async def clear(self, source: SourceKey) -> None: ...

    async def drop_source(self, source: SourceKey) -> None: ...

    async def set_trust(self, source: SourceKey, trusted: bool) -> None: ...

    def attach(self, worker: WorkerKey, node: str | None) -> None:
        """Local to this user of the store: it knows its own workers."""
        ...

    async def match(self, hashes: Sequence[int], now_ms: float) -> dict[WorkerKey, Match]: ...


class MemoryIndexStore:
    """An `IndexStore` of one gateway."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index

    async def apply(self, source: SourceKey, event: BlockEvent, now_ms: float) -> None:
        self._index.apply(source, event, now_ms)

    async def assume(self, source: SourceKey, hashes: Iterable[int], tier: Tier, now_ms: float) -> None:
        self._index.assume(source, hashes, tier, now_ms)

    async def refute(self, source: SourceKey, hashes: Iterable[int]) -> None:
        self._index.refute(source, hashes)

    async def clear(self, source: SourceKey) -> None:
        self._index.clear(source)

    async def drop_source(self, source: SourceKey) -> None:
        self._index.drop_source(source)

    async def set_trust(self, source: SourceKey, trusted: bool) -> None:
        self._index.set_trust(source, trusted)

    def attach(self, worker: WorkerKey, node: str | None) -> None:
        self._index.attach(worker, node)

    async def match(self, hashes: Sequence[int], now_ms: float) -> dict[WorkerKey, Match]:
        return self._index.match(hashes, now_ms)
