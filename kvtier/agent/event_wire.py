"""Journal batches as wire messages."""

from __future__ import annotations

from array import array

from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.store.journal import Replay
from kvtier.wire.messages import EventBatch, EventRun, Events


def to_wire(epoch: int, replay: Replay) -> Events:
    batches = [EventBatch(batch.seq, [_to_run(event) for event in batch.events]) for batch in replay.batches]
    return Events(epoch, batches, replay.snapshot)


def _to_run(event: BlockEvent) -> EventRun:
    if isinstance(event, BlocksStored):
        return EventRun(True, event.tier, _pack(event.hashes), event.block_tokens)
    assert isinstance(event, BlocksRemoved), "a journal says what was stored and removed, nothing else"
    return EventRun(False, event.tier or 0, _pack(event.hashes), 0)


def _pack(hashes: tuple[int, ...]) -> bytes:
    return array("q", hashes).tobytes()
