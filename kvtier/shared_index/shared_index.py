"""An index in memory whose assumptions other gateways are told, and which takes theirs over.

What sources report is not told: every gateway follows the engines and the agents itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from costmodel.values import Tier
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import SourceKey
from kvtier.shared_index.holdings import REFUTED, assumed
from kvtier.shared_index.outbox import Outbox


def _nobody() -> None:
    pass


class SharedIndex(BlockIndex):
    """`on_change` is called after anything was put into the `outbox`."""

    def __init__(self, max_entries: int, max_sources: int, outbox: Outbox | None = None) -> None:
        super().__init__(max_entries, max_sources)
        self.outbox = outbox or Outbox()
        self.on_change: Callable[[], None] = _nobody

    def assume(self, source: SourceKey, hashes: Iterable[int], tier: Tier, now_ms: float) -> None:
        blocks = tuple(hashes)
        super().assume(source, blocks, tier, now_ms)
        if blocks:
            self.outbox.note(source, blocks, assumed(tier))
            self.on_change()

    def refute(self, source: SourceKey, hashes: Iterable[int]) -> None:
        blocks = tuple(hashes)
        super().refute(source, blocks)
        if blocks:
            self.outbox.note(source, blocks, REFUTED)
            self.on_change()

    def clear(self, source: SourceKey) -> None:
        super().clear(source)
        self.outbox.clear(source)
        self.on_change()

    def drop_source(self, source: SourceKey) -> None:
        super().drop_source(source)
        self.outbox.drop(source)
        self.on_change()

    def learn(self, source: SourceKey, hashes: Sequence[int], tier: Tier, heard_ms: float) -> None:
        """Take over what another gateway has assumed."""
        super().assume(source, hashes, tier, heard_ms)
