"""What may be believed of one node's events: a pure state machine over (epoch, seq) for a source that is asked, and answers.

A node numbers its batches from 0 in every epoch, and an answer says what happened since the number that was asked for, or a
snapshot in place of that. A duplicate is dropped. A gap makes the node untrusted until asking again has filled it, be it by a
snapshot; where that does not help, the node is emptied and built anew from number 0. Another epoch is another life, of which
nothing is known yet. A node that was away is not believed before it has answered again. What is believed is what the node held
after some batch, exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from kvtier.index.events import BlockEvent

MAX_FRUITLESS = 3
_OLD_EPOCHS = 4


class NumberedBatch(msgspec.Struct, frozen=True):
    """Events that happened in this order; `seq` counts from 0 in each epoch."""

    seq: int
    events: tuple[BlockEvent, ...]


class NodeStep(msgspec.Struct, frozen=True):
    """What to do now, in this order: empty the node, apply these batches, set trust."""

    trusted: bool
    clear: bool = False
    batches: tuple[NumberedBatch, ...] = ()


class NodeFeed:
    """One node's feed for one space. Ask for what happened since `next_seq`, and give it each answer."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.live = False
        self.duplicates = 0
        self.gaps = 0
        self.restarts = 0
        self.snapshots = 0
        self._epoch: int | None = None
        self._old_epochs: deque[int] = deque(maxlen=_OLD_EPOCHS)
        self._fruitless = 0  # answers in a row that left a gap
        self._ignored = 0  # answers in a row that were of a life taken for over

    def accept(self, epoch: int, batches: Sequence[NumberedBatch], *, snapshot: bool) -> NodeStep:
        """With `snapshot` the first batch holds all there is, up to and with its number."""
        if epoch in self._old_epochs:
            self.duplicates += 1
            self._ignored += 1
            if self._ignored < MAX_FRUITLESS:
                return NodeStep(self.live)
            self._old_epochs.remove(epoch)  # nobody else answers: a straggler had us believe that this life was over
        self._ignored = 0
        clear = epoch != self._epoch
        if clear:
            self._new_life(epoch)
            if not snapshot and (not batches or batches[0].seq):  # the answer to what was asked of another life
                return NodeStep(self.live, clear=True)
        return self._take(batches, snapshot=snapshot, clear=clear)

    def lost(self) -> NodeStep:
        """The node is away. What it held is kept for the resync and not believed meanwhile."""
        self.live = False
        return NodeStep(trusted=False)

    def _take(self, batches: Sequence[NumberedBatch], *, snapshot: bool, clear: bool) -> NodeStep:
        taken = []
        if snapshot and batches and batches[0].seq >= self.next_seq:
            self.snapshots += 1
            clear = True
            taken.append(batches[0])
            self.next_seq = batches[0].seq + 1
        for batch in batches[1:] if snapshot else batches:
            if batch.seq > self.next_seq:
                return self._gap(NodeStep(False, clear, tuple(taken)))
            if batch.seq == self.next_seq:
                taken.append(batch)
                self.next_seq += 1
            else:
                self.duplicates += 1
        self.live = True
        self._fruitless = 0
        return NodeStep(self.live, clear, tuple(taken))

    def _gap(self, step: NodeStep) -> NodeStep:
        self.gaps += 1
        self.live = False
        self._fruitless += 1
        if self._fruitless < MAX_FRUITLESS:
            return step
        self._fruitless = 0
        self.next_seq = 0
        return NodeStep(self.live, clear=True)

    def _new_life(self, epoch: int) -> None:
        if self._epoch is not None:
            self.restarts += 1
            self._old_epochs.append(self._epoch)
        self._epoch = epoch
        self.next_seq = 0
        self.live = False
        self._fruitless = 0
