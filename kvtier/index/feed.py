"""What may be believed of one source's events: a pure state machine over (epoch, seq).

A source numbers its batches from 0 and starts again when it restarts. A duplicate is dropped; a gap makes the source untrusted
until the engine has replayed what is missing; where it cannot, the engine is asked for a snapshot of what it holds, where it
offers one; where it does not, the source is emptied and built anew from the batches that follow, which yields a subset of the
truth, never something false. A source that was away always resyncs, even if its next number fits.

A restart shows as a new epoch where the engine tells one. Else by its numbers and stamps: a later stamp on a number already
seen, number 0 again, or a replay whose batch at our cursor bears another stamp than the one we applied (every resync asks for
that batch again, as proof that both histories are one). Without epochs the caller must report lost connections, and discard
what it had queued from them: a restart whose numbers happen to continue ours cannot be seen otherwise.

The feed does no I/O and touches no index: it answers with a `Step`, and `project` obeys it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

import msgspec

MAX_FRUITLESS_REPLAYS = 3
_OLD_EPOCHS = 4
_START = -1


class FeedState(Enum):
    UNTRUSTED = auto()  # away, or emptied and waiting for a batch to start from
    REPLAYING = auto()
    SNAPSHOTTING = auto()  # emptied; live batches may wait where they are until the snapshot is in
    LIVE = auto()


class Verdict(Enum):
    APPLY = auto()
    DUPLICATE = auto()  # known already, or from a life that is over
    GAP = auto()  # held off: a replay will bring it


class Replay(msgspec.Struct, frozen=True):
    """Ask the engine for its batches from `from_seq` on. One that is asked for later supersedes it."""

    from_seq: int
    ticket: int


class Snapshot(msgspec.Struct, frozen=True):
    """Ask the engine for all that it holds. One that is asked for later supersedes it."""

    ticket: int


class Step(msgspec.Struct, frozen=True):
    """What to do now, in this order: empty the source, apply the batch at hand, set trust, ask for a replay or a snapshot."""

    verdict: Verdict | None  # on the batch that was given; None where none was
    trusted: bool
    clear: bool = False
    replay: Replay | None = None
    snapshot: Snapshot | None = None


class Feed:
    """One source's feed. `epoch` is opaque, `stamp_s` the batch's own timestamp; both may be None throughout."""

    def __init__(self, *, can_replay: bool, can_snapshot: bool = False) -> None:
        self.can_replay = can_replay
        self.can_snapshot = can_snapshot
        self.state = FeedState.UNTRUSTED
        self.cursor = _START  # last batch applied
        self.partial = False  # built from the middle of a history: a subset of what the source holds
        self.gaps = 0
        self.restarts = 0
        self._epoch: int | str | None = None
        self._old_epochs: deque[int | str] = deque(maxlen=_OLD_EPOCHS)
        self._stamp_s: float | None = None  # of the batch at the cursor
        self._newest = _START  # highest number seen in this life, with its stamp
        self._newest_stamp_s: float | None = None
        self._fresh_start = not (can_replay or can_snapshot)  # take the next live batch as the beginning
        self._latest_stamp_s = 0.0  # of any live batch, in whatever life
        self._ticket = 0
        self._asked_at = _START  # cursor when the replay was asked for
        self._held_off = _START  # highest live batch that came since
        self._proven = False  # the replay continues our history
        self._fruitless = 0

    def connected(self, epoch: int | str | None = None) -> Step:
        """The subscription stands, for the first time or again."""
        clear = self._epoch is not None and epoch is not None and epoch != self._epoch
        if clear:
            self._new_life()
        self._adopt(epoch)
        return self._resync(None, clear=clear)

    def disconnected(self) -> Step:
        """The source is away, or health says so. What it held is kept for the resync and not believed meanwhile."""
        self.state = FeedState.UNTRUSTED
        self._ticket += 1
        self._fresh_start = not (self.can_replay or self.can_snapshot)
        return Step(None, trusted=False)

    def accept(self, epoch: int | str | None, seq: int, stamp_s: float | None = None) -> Step:
        """A live batch."""
        if epoch is not None and epoch in self._old_epochs:
            if not self._is_newest(stamp_s):
                return self._step(Verdict.DUPLICATE)
            self._old_epochs.remove(epoch)  # a straggler of another life had us believe that this one was over
        self._latest_stamp_s = max(self._latest_stamp_s, stamp_s or 0.0)
        if epoch is not None and self._epoch is not None and epoch != self._epoch:
            return self._restart(epoch, seq, stamp_s)
        self._adopt(epoch)
        if self._fresh_start:
            return self._begin(seq, stamp_s)
        if self._went_back(seq, stamp_s):
            return self._restart(epoch, seq, stamp_s)
        if seq <= self.cursor or self._is_late(seq, stamp_s):
            return self._step(Verdict.DUPLICATE)
        self._saw(seq, stamp_s)
        if self.state is FeedState.SNAPSHOTTING:
            self._held_off = max(self._held_off, seq)
            return self._step(Verdict.GAP)
        if self.state is FeedState.UNTRUSTED:
            return self._resync(Verdict.GAP)
        if seq == self.cursor + 1 and (self.state is FeedState.LIVE or self._proven):
            return self._advance(seq, stamp_s, caught_up=seq >= self._held_off)
        return self._gap(seq, stamp_s)

    def replayed(self, ticket: int, seq: int, stamp_s: float | None = None) -> Step:
        """A batch of the replay with this ticket."""
        if not self._current(ticket) or seq < self.cursor:
            return self._step(Verdict.DUPLICATE)
        if seq == self.cursor:
            return self._splice(stamp_s)
        self._saw(seq, stamp_s)
        if seq == self.cursor + 1 and self._proven:
            return self._advance(seq, stamp_s, caught_up=False)
        return self._lost(seq, stamp_s)

    def replay_ended(self, ticket: int) -> Step:
        """The engine has sent all it had."""
        if not self._current(ticket):
            return self._step(None)
        if not self._proven:  # not even our last batch: another life, or the engine has forgotten this one
            self._forget()
            return self._resync(None, clear=True)
        if self._held_off <= self.cursor:
            self.state = FeedState.LIVE
            self._fruitless = 0
            return self._step(None)
        self._fruitless = 0 if self.cursor > self._asked_at else self._fruitless + 1
        return self._give_up() if self._fruitless >= MAX_FRUITLESS_REPLAYS else self._resync(None)

    def replay_failed(self, ticket: int) -> Step:
        """No replay to be had: refused, timed out, or broken off."""
        return self._give_up() if self._current(ticket) else self._step(None)

    def snapshotted(self, ticket: int, epoch: str, barrier_seq: int) -> Step:
        """A whole snapshot, cut at batch `barrier_seq`, which it includes; its blocks are the batch that this step judges."""
        if not self._current(ticket):
            return self._step(Verdict.DUPLICATE)
        if epoch in self._old_epochs:
            return self.snapshot_failed(ticket)
        self.restarts += self._epoch not in (None, epoch)
        self._forget()
        self._adopt(epoch)
        self._saw(barrier_seq, None)
        self.cursor = barrier_seq
        if self._held_off > barrier_seq:  # what came meanwhile was not applied
            self._fruitless += 1
            hopeless = self._fruitless >= MAX_FRUITLESS_REPLAYS
            return self._start_over() if hopeless else self._resync(Verdict.APPLY, clear=True)
        self._fruitless = 0
        self.state = FeedState.LIVE
        return self._step(Verdict.APPLY, clear=True)

    def snapshot_failed(self, ticket: int) -> Step:
        """Refused, timed out, or unreadable."""
        return self._start_over() if self._current(ticket) else self._step(None)

    def _step(self, verdict: Verdict | None, *, clear: bool = False, replay: Replay | None = None) -> Step:
        return Step(verdict, self.state is FeedState.LIVE, clear, replay)

    def _current(self, ticket: int) -> bool:
        return ticket == self._ticket and self.state in (FeedState.REPLAYING, FeedState.SNAPSHOTTING)

    def _adopt(self, epoch: int | str | None) -> None:
        if epoch is not None:
            self._epoch = epoch

    def _saw(self, seq: int, stamp_s: float | None) -> None:
        if seq > self._newest:
            self._newest = seq
            self._newest_stamp_s = stamp_s

    def _is_newest(self, stamp_s: float | None) -> bool:
        return stamp_s is not None and stamp_s > self._latest_stamp_s

    def _went_back(self, seq: int, stamp_s: float | None) -> bool:
        """A number that was seen before, yet in a new life. A replay asked for in vain is the worst that a mistake costs."""
        if self._epoch is not None or seq > self._newest:
            return False
        if seq == 0 < self._newest:
            return True
        return stamp_s is not None and self._newest_stamp_s is not None and stamp_s > self._newest_stamp_s

    def _is_late(self, seq: int, stamp_s: float | None) -> bool:
        """A higher number with an older stamp is left over from a life before this one."""
        if seq <= self._newest or stamp_s is None or self._newest_stamp_s is None:
            return False
        return stamp_s < self._newest_stamp_s

    def _advance(self, seq: int, stamp_s: float | None, *, caught_up: bool) -> Step:
        self.cursor = seq
        self._stamp_s = stamp_s
        if caught_up:
            self.state = FeedState.LIVE
            self._fruitless = 0
        return self._step(Verdict.APPLY)

    def _gap(self, seq: int, stamp_s: float | None) -> Step:
        if self.state is FeedState.REPLAYING:
            self._held_off = max(self._held_off, seq)
            return self._step(Verdict.GAP)
        self.gaps += 1
        return self._resync(Verdict.GAP) if self.can_replay or self.can_snapshot else self._begin(seq, stamp_s)

    def _splice(self, stamp_s: float | None) -> Step:
        """The engine's batch at our cursor: the same one, or another life's."""
        if stamp_s is None or self._stamp_s is None or stamp_s == self._stamp_s:
            self._proven = True
            return self._step(Verdict.DUPLICATE)
        self.restarts += 1
        self._forget()  # but not the epoch: which one this new life has is not known yet
        return self._resync(Verdict.GAP, clear=True)

    def _restart(self, epoch: int | str | None, seq: int, stamp_s: float | None) -> Step:
        self._new_life()
        self._adopt(epoch)
        self._saw(seq, stamp_s)
        if not (self.can_replay or self.can_snapshot) or (seq == 0 and epoch is not None):
            return self._begin(seq, stamp_s)
        return self._resync(Verdict.GAP, clear=True)

    def _new_life(self) -> None:
        self.restarts += 1
        if self._epoch is not None:
            self._old_epochs.append(self._epoch)
            self._epoch = None
        self._forget()

    def _forget(self) -> None:
        self.cursor = self._newest = _START
        self._stamp_s = self._newest_stamp_s = None
        self.partial = False

    def _begin(self, seq: int, stamp_s: float | None) -> Step:
        """Empty the source and build it from this batch on."""
        self._forget()
        self._saw(seq, stamp_s)
        self._ticket += 1
        self._fresh_start = False
        self.partial = seq > 0
        self._fruitless = 0
        self.cursor, self._stamp_s = seq, stamp_s
        self.state = FeedState.LIVE
        return self._step(Verdict.APPLY, clear=True)

    def _lost(self, seq: int, stamp_s: float | None) -> Step:
        """The replay starts or goes on behind a hole: only what follows can be known from it."""
        if self.can_snapshot:
            return self._give_up(Verdict.GAP)
        self.cursor, self._stamp_s = seq, stamp_s
        self._proven = True
        self.partial = seq > 0
        return self._step(Verdict.APPLY, clear=True)

    def _resync(self, verdict: Verdict | None, *, clear: bool = False) -> Step:
        if not self.can_replay:
            return self._give_up(verdict)
        self.state = FeedState.REPLAYING
        self._fresh_start = False
        self._ticket += 1
        self._asked_at = self.cursor
        self._held_off = _START
        self._proven = self.cursor == _START
        return self._step(verdict, clear=clear, replay=Replay(max(self.cursor, 0), self._ticket))

    def _give_up(self, verdict: Verdict | None = None) -> Step:
        """Replay does not help: empty, and ask for a snapshot where there is one."""
        if not self.can_snapshot:
            return self._start_over()
        self._forget()
        self._ticket += 1
        self._held_off = _START
        self._fresh_start = False
        self.state = FeedState.SNAPSHOTTING
        return Step(verdict, trusted=False, clear=True, snapshot=Snapshot(self._ticket))

    def _start_over(self) -> Step:
        """Empty; the next live batch is a new beginning."""
        self._forget()
        self._ticket += 1
        self._fruitless = 0
        self._fresh_start = True
        self.state = FeedState.UNTRUSTED
        return self._step(None, clear=True)
