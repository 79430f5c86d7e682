"""The subscriber against a publisher of its own wire: late joining, gaps, holes in a replay, restarts, and a clean end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
import zmq.asyncio

from costmodel.values import WorkerKey
from engine_adapters.base import EventFeed
from engine_adapters.sglang.events import decode_events
from engine_adapters.sglang.subscriber import Subscriber
from kvtier.index.memory import BlockIndex

SOURCE = WorkerKey("p0")
END = b"\xff" * 8
DEADLINE_S = 10.0


class Publisher:
    """An engine's publisher: numbers from 0 in each life, a replay buffer, and faults on request."""

    def __init__(self, epoch: str | None = None) -> None:
        self.topic = b"kv-events" + (b"" if epoch is None else b"\0sgl-kv-epoch=" + epoch.encode())
        self.context = zmq.asyncio.Context()
        self.ports = (0, 0)
        self.dropped_replays: list[set[int]] = []  # per answer to come: numbers that get lost on the way
        self.answers = 0
        self.refused_snapshots = 0  # of the ones to come
        self.snapshots = 0

    async def open(self, *addresses: str) -> None:
        self.sent: list[bytes] = []
        self.stored: list[int] = []
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        self.cutter = self.context.socket(zmq.ROUTER)
        sockets = (self.pub, self.router, self.cutter)
        for socket, address in zip(sockets, addresses or ("tcp://127.0.0.1:0",) * 3, strict=True):
            socket.setsockopt(zmq.LINGER, 0)
            await bound(socket, address)
        self.addresses = tuple(socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets)
        self.task = asyncio.create_task(self._serve())
        self.cutting = asyncio.create_task(self._serve_snapshots())

    @property
    def feed(self) -> EventFeed:
        return EventFeed(0, self.addresses[0], self.addresses[1], "kv-events")

    @property
    def feed_with_snapshots(self) -> EventFeed:
        return msgspec.structs.replace(self.feed, snapshot_address=self.addresses[2])

    async def subscribed(self) -> None:
        """A subscription has reached this side."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self.pub.recv())[0] != 1:
                pass

    async def publish(self, *hashes: int, lost: bool = False) -> None:
        event: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": 4,
        }
        payload = msgspec.msgpack.encode([time.time(), [event | {"lora_id": None, "medium": "GPU"}], 0])
        self.stored += hashes
        await self._send(payload, self.topic, lost=lost)

    async def _send(self, payload: bytes, topic: bytes, *, lost: bool = False) -> None:
        self.sent.append(payload)
        if not lost:
            await self.pub.send_multipart([topic, (len(self.sent) - 1).to_bytes(8, "big"), payload])

    async def _serve_snapshots(self) -> None:
        """As SGLang's publisher does it: an empty batch marks the cut, then header, chunks of two records, end."""
        while True:
            client, _, command = await self.cutter.recv_multipart()
            assert command == b"snapshot-v1"
            self.snapshots += 1
            if self.refused_snapshots:
                self.refused_snapshots -= 1
                await self.cutter.send_multipart([client, b"", b"error", b"snapshot provider busy"])
                continue
            await self._send(msgspec.msgpack.encode([time.time(), [], 0]), self.topic + b"\0sgl-kv-snapshot=cut")
            held, epoch = list(self.stored), self.topic.partition(b"epoch=")[2].decode()
            header = [1, epoch, 0, len(self.sent), len(self.sent) - 1, "cut", len(held)]
            await self.cutter.send_multipart([client, b"", b"header", msgspec.msgpack.encode(header)])
            for at in range(0, len(held), 2):
                chunk = [[None, [block]] for block in held[at : at + 2]]
                await self.cutter.send_multipart([client, b"", b"chunk", msgspec.msgpack.encode(chunk)])
            await self.cutter.send_multipart([client, b"", b"end", b""])

    async def _serve(self) -> None:
        while True:
            client, _, first = await self.router.recv_multipart()
            lost = self.dropped_replays.pop(0) if self.dropped_replays else set()
            self.answers += 1
            for seq in range(int.from_bytes(first, "big"), len(self.sent)):
                if seq not in lost:
                    await self.router.send_multipart([client, b"", self.topic, seq.to_bytes(8, "big"), self.sent[seq]])
            await self.router.send_multipart([client, b"", b"", END, b""])

    async def crash(self) -> None:
        self.task.cancel()
        self.cutting.cancel()
        await asyncio.gather(self.task, self.cutting, return_exceptions=True)
        for socket in (self.pub, self.router, self.cutter):
            socket.close(linger=0)

    async def restart(self, epoch: str | None = None) -> None:
        await self.crash()
        self.topic = b"kv-events" + (b"" if epoch is None else b"\0sgl-kv-epoch=" + epoch.encode())
        await self.open(*self.addresses)


@asynccontextmanager
async def following(feed: EventFeed, silence_s: float = DEADLINE_S) -> AsyncIterator[tuple[Subscriber, BlockIndex]]:
    index = BlockIndex()
    subscriber = Subscriber(feed, SOURCE, index, decode_events, lambda: time.monotonic() * 1000, replay_silence_s=silence_s)
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber, index
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    engine = Publisher()
    await engine.open()
    yield engine
    await engine.crash()
    engine.context.destroy(linger=0)


async def bound(socket: zmq.asyncio.Socket, address: str) -> None:
    """A port that was just closed is free only once the socket's own thread has let go of it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                await asyncio.sleep(0.002)
            else:
                return


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for crosses real sockets
            await asyncio.sleep(0.002)


def holds(index: BlockIndex, *hashes: int) -> bool:
    match = index.match(hashes, 0.0).get(SOURCE)
    return match is not None and match.blocks == len(hashes)


async def test_a_late_joiner_learns_what_was_stored_before_and_goes_on_live(publisher: Publisher) -> None:
    await publisher.publish(1, 2)
    await publisher.publish(3)
    async with following(publisher.feed) as (subscriber, index):
        await publisher.subscribed()
        await until(lambda: holds(index, 1, 2, 3))
        await publisher.publish(4)
        await until(lambda: holds(index, 1, 2, 3, 4))
        assert subscriber.status.state == "live"
        assert (subscriber.status.applied, subscriber.status.gaps, subscriber.status.partial) == (3, 0, False)
    assert not index.match([1], 0.0), "nobody follows this source any more"


async def test_a_lost_batch_is_fetched_by_replay(publisher: Publisher) -> None:
    async with following(publisher.feed) as (subscriber, index):
        await publisher.subscribed()
        await publisher.publish(1)
        await until(lambda: holds(index, 1))
        await publisher.publish(2, lost=True)
        await publisher.publish(3)
        await until(lambda: holds(index, 1, 2, 3))
        assert subscriber.status.gaps == 1
        assert not subscriber.status.partial


async def test_a_hole_in_a_replay_is_asked_for_again(publisher: Publisher) -> None:
    for block in range(20):
        await publisher.publish(block)
    publisher.dropped_replays = [{7, 8}, {15}]
    async with following(publisher.feed) as (subscriber, index):
        await until(lambda: holds(index, *range(20)))
        assert publisher.answers == 3
        assert not subscriber.status.partial


async def test_a_lost_end_of_replay_is_asked_for_again(publisher: Publisher) -> None:
    await publisher.publish(1)
    answered = asyncio.Event()
    serve = publisher.task

    async def without_end() -> None:
        client, _, _ = await publisher.router.recv_multipart()
        await publisher.router.send_multipart([client, b"", publisher.topic, bytes(8), publisher.sent[0]])
        answered.set()

    serve.cancel()
    await asyncio.gather(serve, return_exceptions=True)
    publisher.task = asyncio.create_task(without_end())
    async with following(publisher.feed, silence_s=0.2) as (subscriber, index):
        await answered.wait()
        publisher.task = asyncio.create_task(publisher._serve())
        await until(lambda: subscriber.status.state == "live" and holds(index, 1))


async def test_a_replay_that_never_answers_starts_from_the_next_batch(publisher: Publisher) -> None:
    publisher.task.cancel()
    await publisher.publish(1)
    async with following(publisher.feed, silence_s=0.2) as (subscriber, index):
        await publisher.subscribed()
        await until(lambda: subscriber.status.replays > 0 and subscriber.status.state == "untrusted")
        await publisher.publish(2)
        await until(lambda: holds(index, 2))
        assert not holds(index, 1)
        assert subscriber.status.partial


async def test_without_a_replay_address_only_what_comes_is_known(publisher: Publisher) -> None:
    feed = msgspec.structs.replace(publisher.feed, replay_address=None)
    async with following(feed) as (subscriber, index):
        await publisher.subscribed()
        await publisher.publish(1)
        await until(lambda: holds(index, 1))
        await publisher.publish(2, lost=True)
        await publisher.publish(3)
        await until(lambda: holds(index, 3))
        assert not holds(index, 1), "a gap that cannot be bridged empties the source"
        assert subscriber.status.partial


@pytest.mark.parametrize("epoch", [None, "second"])
@pytest.mark.parametrize("batches_before", [1, 5])
async def test_a_restarted_engine_holds_nothing_of_its_former_life(
    publisher: Publisher, epoch: str | None, batches_before: int
) -> None:
    for block in range(batches_before):
        await publisher.publish(block)
    async with following(publisher.feed) as (subscriber, index):
        await until(lambda: holds(index, *range(batches_before)))
        await publisher.restart(epoch)
        for block in range(100, 103):
            await publisher.publish(block, lost=True)  # before the subscriber is back
        await publisher.subscribed()
        await until(lambda: holds(index, 100, 101, 102))
        assert not holds(index, 0)
        assert not subscriber.status.partial


async def test_a_broken_connection_distrusts_and_a_resync_believes_again(publisher: Publisher) -> None:
    await publisher.publish(1)
    async with following(publisher.feed) as (subscriber, index):
        await until(lambda: holds(index, 1))
        sent = publisher.sent
        await publisher.crash()
        await until(lambda: not holds(index, 1) and not subscriber.status.connected)
        await publisher.open(*publisher.addresses)
        publisher.sent = sent  # the same life: only the network was away
        await publisher.publish(2, lost=True)
        await until(lambda: holds(index, 1, 2))
        assert subscriber.status.restarts == 0


@pytest.fixture
async def snapshotting(publisher: Publisher) -> Publisher:
    """An engine whose replay buffer has lost its beginning, and that offers snapshots."""
    publisher.topic += b"\0sgl-kv-epoch=first"
    for block in range(5):
        await publisher.publish(block)
    publisher.dropped_replays = [set(range(3))] * 9
    return publisher


async def test_what_replay_no_longer_has_comes_by_snapshot(snapshotting: Publisher) -> None:
    async with following(snapshotting.feed_with_snapshots) as (subscriber, index):
        await snapshotting.subscribed()
        await until(lambda: holds(index, *range(5)))
        await snapshotting.publish(5)
        await until(lambda: holds(index, *range(6)))
        assert (subscriber.status.state, subscriber.status.snapshots) == ("live", 1)
        assert (subscriber.status.restarts, subscriber.status.partial) == (0, False), "the cut's own topic is no new life"


async def test_a_feed_without_replay_lives_on_snapshots(snapshotting: Publisher) -> None:
    feed = msgspec.structs.replace(snapshotting.feed_with_snapshots, replay_address=None)
    async with following(feed) as (subscriber, index):
        await snapshotting.subscribed()
        await until(lambda: holds(index, *range(5)))
        await snapshotting.publish(5, lost=True)
        await snapshotting.publish(6)
        await until(lambda: holds(index, *range(7)))
        assert (subscriber.status.snapshots, subscriber.status.partial) == (2, False)


@pytest.mark.slow
async def test_a_busy_engine_is_asked_for_its_snapshot_again(snapshotting: Publisher) -> None:
    snapshotting.refused_snapshots = 2
    async with following(snapshotting.feed_with_snapshots) as (_, index):
        await until(lambda: holds(index, *range(5)))
        assert snapshotting.snapshots == 3


@pytest.mark.slow
async def test_an_engine_without_a_snapshot_to_give_is_known_from_the_next_batch_on(snapshotting: Publisher) -> None:
    snapshotting.cutting.cancel()
    async with following(snapshotting.feed_with_snapshots, silence_s=0.05) as (subscriber, index):
        await snapshotting.subscribed()
        await until(lambda: subscriber.status.state == "untrusted" and subscriber.status.snapshots == 4)
        await snapshotting.publish(9)
        await until(lambda: holds(index, 9))
        assert subscriber.status.partial


async def test_an_unreadable_batch_is_counted_and_empties_what_it_may_have_changed(publisher: Publisher) -> None:
    async with following(publisher.feed) as (subscriber, index):
        await publisher.subscribed()
        await publisher.publish(1)
        await until(lambda: holds(index, 1))
        publisher.sent.append(b"\xc1")
        await publisher.pub.send_multipart([publisher.topic, (1).to_bytes(8, "big"), b"\xc1"])
        await publisher.publish(2)
        await until(lambda: holds(index, 2) and subscriber.status.state == "live")
        assert subscriber.status.unreadable > 0
        assert not holds(index, 1)


async def test_other_topics_are_not_heard(publisher: Publisher) -> None:
    async with following(publisher.feed) as (subscriber, index):
        await publisher.subscribed()
        await publisher.pub.send_multipart([b"load", bytes(8), b"\xc1"])
        await publisher.publish(1)
        await until(lambda: holds(index, 1))
        assert subscriber.status.unreadable == 0
