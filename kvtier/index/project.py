"""The one place that obeys a feed's steps: events into the index, in the order that keeps it true."""

from __future__ import annotations

from collections.abc import Iterable

from kvtier.index.events import BlockEvent
from kvtier.index.feed import Replay, Step, Verdict
from kvtier.index.memory import BlockIndex
from kvtier.index.source_key import SourceKey


def project(index: BlockIndex, source: SourceKey, step: Step, events: Iterable[BlockEvent], now_ms: float) -> Replay | None:
    """Apply `step`, with `events` of the batch it judges (none where there was no batch). Returns the replay to ask for."""
    if not step.trusted:
        index.set_trust(source, False)
    if step.clear:
        index.clear(source)
    if step.verdict is Verdict.APPLY:
        for event in events:
            index.apply(source, event, now_ms)
    if step.trusted:
        index.set_trust(source, True)
    return step.replay
