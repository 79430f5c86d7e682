"""The snapshot socket's messages: what makes one whole, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import zmq
import zmq.asyncio

from costmodel.values import Tier
from engine_adapters.sglang.snapshot import SnapshotError, SnapshotReader
from kvtier.index.events import BlocksStored

HEADER = [1, "e1", 0, 8, 7, "cut", 2]


@pytest.fixture
def reader() -> Iterator[SnapshotReader]:
    context = zmq.asyncio.Context()
    made = SnapshotReader(context, "tcp://127.0.0.1:1", ticket=1, now_s=0.0)
    yield made
    made.close()
    context.destroy(linger=0)


def message(kind: bytes, content: object) -> list[bytes]:
    return [b"", kind, msgspec.msgpack.encode(content)]


def test_header_chunks_and_end_make_a_snapshot(reader: SnapshotReader) -> None:
    assert not reader._take(message(b"header", HEADER))
    assert not reader._take(message(b"chunk", [[None, [11]], [11, [12, 13]]]))
    assert reader._take([b"", b"end", b""])
    assert reader.header is not None
    assert (reader.header.epoch, reader.header.barrier_seq) == ("e1", 7)
    assert reader.events == [BlocksStored((11,), None, Tier.L1, 0), BlocksStored((12, 13), 11, Tier.L1, 0)]


@pytest.mark.parametrize(
    "messages",
    [
        [[b"", b"error", b"snapshot provider busy"]],
        [[b"", b"end", b""]],
        [message(b"chunk", [])],
        [[b"x", b"header", b""]],
        [[b"", b"header"]],
        [[b"", b"header", b"\xc1"]],
        [message(b"header", [2, *HEADER[1:]])],
        [message(b"header", [*HEADER[:6], -1])],
        [message(b"header", [1, "e1", 0, 9, 7, "cut", 2])],
        [message(b"header", HEADER), [b"", b"end", b""]],
        [message(b"header", HEADER), message(b"chunk", [[None, [1]]] * 3)],
        [message(b"header", HEADER), message(b"chunk", [[None, ["a"]]])],
    ],
)
def test_anything_else_is_refused(reader: SnapshotReader, messages: list[list[bytes]]) -> None:
    *good, bad = messages
    for parts in good:
        reader._take(parts)
    with pytest.raises(SnapshotError):
        reader._take(bad)
