"""The one place that obeys a feed's steps: events into the index, in the order that keeps it true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvtier.index.events import BlockEvent
from kvtier.index.feed import Replay, Step, Verdict
from kvtier.index.memory import BlockIndex
from kvtier.index.node_feed import NodeStep
from kvtier.index.source_key import NodeKey, SourceKey

EVENTS_AT_ONCE = 4  # of a node, which puts up to 4096 hashes in each


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


def project_node(index: BlockIndex, node: NodeKey, step: NodeStep, now_ms: float) -> Iterator[None]:
    """The same for a node's feed, in pieces between which others may run; the node is believed only when all are in."""
    events = [event for batch in step.batches for event in batch.events]
    if not step.trusted or len(events) > EVENTS_AT_ONCE:
        index.set_trust(node, False)
    if step.clear:
        index.clear(node)
    for count, event in enumerate(events, 1):
        index.apply(node, event, now_ms)
        if count % EVENTS_AT_ONCE == 0:
            yield
    if step.trusted:
        index.confirm(node, now_ms)
        index.set_trust(node, True)
