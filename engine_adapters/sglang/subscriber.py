"""Follows one rank's KV events into the index: a task that moves frames between sockets, a `Feed` and a `BlockIndex`.

The feed decides what may be believed, `project` what becomes of it; this task only waits, reads and asks. It serves every
engine with SGLang's framing (vLLM's is the same); the payload's decoder is given. It runs until cancelled, holds no more than
the sockets' limits, and yields to the event loop between small turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog
import zmq
import zmq.asyncio

from costmodel.values import WorkerKey
from engine_adapters.base import AdapterError, EventBatch, EventFeed
from engine_adapters.sglang.frames import Frame
from engine_adapters.sglang.replay import MAX_ASKS, Progress, ReplayReader
from engine_adapters.sglang.snapshot import SnapshotError, SnapshotReader
from engine_adapters.sglang.subscription import LinkChange, Subscription
from kvtier.index.events import BlockEvent
from kvtier.index.feed import Feed, Replay, Step, Verdict
from kvtier.index.memory import BlockIndex
from kvtier.index.project import project

BATCHES_A_TURN = 16
WAIT_S = 1.0  # the longest that a turn waits
REPLAY_SILENCE_S = 10.0
SNAPSHOT_RETRY_S = 0.3  # a busy engine copies what it holds at its next batch, within 0.1 s

_log = structlog.get_logger(__name__)


class FeedStatus(msgspec.Struct, frozen=True):
    """What a feed has come to, for the admin API and metrics. Counts are since the subscriber was made."""

    dp_rank: int
    address: str
    state: str  # untrusted, replaying, snapshotting, live
    connected: bool
    applied: int  # batches
    events: int
    gaps: int
    restarts: int
    replays: int
    snapshots: int  # asked for
    unreadable: int
    partial: bool  # built from the middle of the engine's history: a subset of what it holds


class Subscriber:
    """One feed's task: `run` it and cancel it. `clock` gives monotonic ms; `index` is shared with the rest of its loop."""

    def __init__(
        self,
        feed: EventFeed,
        source: WorkerKey,
        index: BlockIndex,
        decode: Callable[[bytes], EventBatch],
        clock: Callable[[], float],
        *,
        replay_silence_s: float = REPLAY_SILENCE_S,
    ) -> None:
        self.feed = Feed(can_replay=feed.replay_address is not None, can_snapshot=feed.snapshot_address is not None)
        self._where = feed
        self._source = source
        self._index = index
        self._decode = decode
        self._clock = clock
        self._replay_silence_s = replay_silence_s
        self._reader: ReplayReader | None = None
        self._snapshot: SnapshotReader | None = None
        self._snapshot_asks = 0  # for the ticket that is being served
        self._retry: tuple[int, float] | None = None  # that ticket, and when to ask again
        self._connected = False
        self._changes: list[LinkChange] = []  # at most an end that waits for the batches before it
        self._applied = self._events = self._replays = self._snapshots = self._unreadable = 0

    @property
    def status(self) -> FeedStatus:
        return FeedStatus(
            dp_rank=self._where.dp_rank,
            address=self._where.address,
            state=self.feed.state.name.lower(),
            connected=self._connected,
            applied=self._applied,
            events=self._events,
            gaps=self.feed.gaps,
            restarts=self.feed.restarts,
            replays=self._replays,
            snapshots=self._snapshots,
            unreadable=self._unreadable,
            partial=self.feed.partial,
        )

    async def run(self) -> None:
        """Follow until cancelled. What the source was known to hold is distrusted on the way out."""
        context = zmq.asyncio.Context()
        subscription = Subscription(context, self._where.address, self._where.topic)
        try:
            while True:
                await self._wait(subscription)
                self._turn(context, subscription)
                await asyncio.sleep(0)
        finally:
            self._obey(context, self.feed.disconnected(), ())
            self._drop_readers()
            subscription.close()
            context.destroy(linger=0)

    async def _wait(self, subscription: Subscription) -> None:
        poller = zmq.asyncio.Poller()
        live = [subscription.socket] if self._snapshot is None else [self._snapshot.socket]
        sockets = [*live, subscription.monitor, *([self._reader.socket] if self._reader else [])]
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        longest_s = WAIT_S if self._retry is None else SNAPSHOT_RETRY_S
        await poller.poll(round(min(longest_s, self._replay_silence_s) * 1000))

    def _turn(self, context: zmq.asyncio.Context, subscription: Subscription) -> None:
        """A connection counts before the batches that came over it, and its end after those that came before.

        Asked for in this order, a connection is always seen no later than its batches. While a snapshot is on its way, live
        batches stay where they are: it says after which of them it was cut.
        """
        if self._snapshot is not None:
            self._snapshotted(context, self._snapshot)
        elif self._retry is not None and self._now_s() >= self._retry[1]:
            self._ask_snapshot(context, self._retry[0])
        frames = subscription.read(BATCHES_A_TURN if self._snapshot is None else 0)
        self._changes += subscription.link_changes()
        ended = self._changes[-1:] == [LinkChange.DOWN]
        for change in self._changes[:-1] if ended else self._changes:
            self._link(context, change)
        self._changes = self._changes[-1:] if ended else []
        for frame in frames:
            self._live(context, frame)
        if ended and (len(frames) < BATCHES_A_TURN or self._snapshot is not None):
            self._link(context, self._changes.pop())
        if self._reader is not None:
            self._replayed(context, self._reader)

    def _live(self, context: zmq.asyncio.Context, frame: Frame) -> None:
        batch = self._read(frame)
        if batch is not None:
            self._obey(context, self.feed.accept(frame.epoch, frame.seq, batch.timestamp_s), batch.events)

    def _link(self, context: zmq.asyncio.Context, change: LinkChange) -> None:
        self._connected = change is LinkChange.UP
        step = self.feed.connected() if self._connected else self.feed.disconnected()
        self._obey(context, step, ())

    def _replayed(self, context: zmq.asyncio.Context, reader: ReplayReader) -> None:
        frames, progress = reader.read(BATCHES_A_TURN, self._now_s())
        for frame in frames:
            batch = self._read(frame)
            if batch is not None and self._reader is reader:  # a batch can end this replay and begin another
                self._obey(context, self.feed.replayed(reader.ticket, frame.seq, batch.timestamp_s), batch.events)
        if self._reader is not reader:
            return
        if progress is Progress.DONE:
            self._drop_readers()
            self._obey(context, self.feed.replay_ended(reader.ticket), ())
        elif progress is Progress.HOLE or self._now_s() - reader.heard_s > self._replay_silence_s:
            self._ask_again(context, reader)

    def _ask_again(self, context: zmq.asyncio.Context, reader: ReplayReader) -> None:
        successor = reader.successor(self._now_s())
        self._drop_readers()
        if successor is not None:
            self._reader = successor
            return
        _log.warning("kv_replay_failed", source=self._source, address=self._where.replay_address)
        self._obey(context, self.feed.replay_failed(reader.ticket), ())

    def _obey(self, context: zmq.asyncio.Context, step: Step, events: Sequence[BlockEvent]) -> None:
        replay = project(self._index, self._source, step, events, self._clock())
        if step.verdict is Verdict.APPLY:
            self._applied += 1
            self._events += len(events)
        if step.clear:
            _log.info("kv_source_emptied", source=self._source, restarts=self.feed.restarts, gaps=self.feed.gaps)
        if replay is not None:
            self._ask(context, replay)
        if step.snapshot is not None:
            self._snapshot_asks = 0
            self._ask_snapshot(context, step.snapshot.ticket)

    def _snapshotted(self, context: zmq.asyncio.Context, reader: SnapshotReader) -> None:
        try:
            whole = reader.read(BATCHES_A_TURN, self._now_s())
        except SnapshotError as error:
            self._snapshot_failed(context, reader.ticket, str(error))
            return
        if whole and reader.header is not None:
            self._drop_readers()
            step = self.feed.snapshotted(reader.ticket, reader.header.epoch, reader.header.barrier_seq)
            self._obey(context, step, reader.events)
        elif self._now_s() - reader.heard_s > self._replay_silence_s:
            self._snapshot_failed(context, reader.ticket, "no answer")

    def _snapshot_failed(self, context: zmq.asyncio.Context, ticket: int, error: str) -> None:
        """An engine takes one asker at a time, so it is asked again, a few times."""
        self._drop_readers()
        _log.warning("kv_snapshot_failed", source=self._source, address=self._where.snapshot_address, error=error)
        if self._snapshot_asks < MAX_ASKS:
            self._retry = (ticket, self._now_s() + SNAPSHOT_RETRY_S)
        else:
            self._obey(context, self.feed.snapshot_failed(ticket), ())

    def _ask_snapshot(self, context: zmq.asyncio.Context, ticket: int) -> None:
        assert self._where.snapshot_address is not None, "a feed that cannot take snapshots asks for none"
        self._drop_readers()
        self._snapshots += 1
        self._snapshot_asks += 1
        self._snapshot = SnapshotReader(context, self._where.snapshot_address, ticket, self._now_s())

    def _ask(self, context: zmq.asyncio.Context, replay: Replay) -> None:
        assert self._where.replay_address is not None, "a feed that cannot replay asks for none"
        self._drop_readers()
        self._replays += 1
        self._reader = ReplayReader(context, self._where.replay_address, replay.from_seq, replay.ticket, self._now_s())

    def _read(self, frame: Frame) -> EventBatch | None:
        """An unreadable batch is left out, so that the feed sees the gap that it is."""
        try:
            return self._decode(frame.payload)
        except AdapterError as error:
            self._unreadable += 1
            _log.warning("kv_batch_unreadable", source=self._source, seq=frame.seq, error=str(error))
            return None

    def _drop_readers(self) -> None:
        for reader in (self._reader, self._snapshot):
            if reader is not None:
                reader.close()
        self._reader = self._snapshot = self._retry = None

    def _now_s(self) -> float:
        return self._clock() / 1000.0
