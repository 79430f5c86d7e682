"""One conversation with an engine's snapshot socket: all that a rank holds at one moment of its event stream.

Newer SGLang (`snapshot_endpoint` of `--kv-events-config`) answers the request `["", "snapshot-v1"]` with `["", "header", …]`,
chunks of up to 4,096 records and `["", "end", ""]`, or with `["", "error", text]`. The header names the batch at which the cut
was made: that one's effect is in the snapshot, the next one's is not. Records tell no tier. The engine drops a block from its
snapshot once any tier has removed it, so that what is left has not left the accelerator: all of it counts as L1, and a block
that the host tier alone still holds is missed, never one invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

from costmodel.values import Tier
from engine_adapters.base import AdapterError
from kvtier.index.events import BlocksStored

SNAPSHOT_VERSION = 1
MAX_RECORDS = 20_000_000  # far beyond what one rank can hold; a header that tells more is not believed
_REQUEST = [b"", b"snapshot-v1"]
_RECEIVE_LIMIT = 20_000

T = TypeVar("T")


class SnapshotError(AdapterError):
    """The engine refused, or sent what is no snapshot."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    version: int
    epoch: str
    replica_rank: int
    resume_seq: int  # the first batch that the snapshot does not hold
    barrier_seq: int  # the last that it does
    barrier_id: str
    record_count: int


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True):
    parent_block_hash: int | None
    block_hashes: tuple[int, ...]


class SnapshotReader:
    """Serves one ticket of the feed: asks at once; `read` takes what has come. The owner closes it and judges its silence."""

    def __init__(self, context: zmq.asyncio.Context, address: str, ticket: int, now_s: float) -> None:
        self.ticket = ticket
        self.heard_s = now_s
        self.header: SnapshotHeader | None = None
        self.events: list[BlocksStored] = []
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, _RECEIVE_LIMIT)
        self._plain = zmq.Socket(shadow=self.socket)
        self._plain.connect(address)
        self._plain.send_multipart(_REQUEST, zmq.NOBLOCK)  # queued until the connection stands

    def read(self, limit: int, now_s: float) -> bool:
        """Take up to `limit` messages; True once the snapshot is whole. Never waits. Raises `SnapshotError`."""
        for _ in range(limit):
            try:
                parts = self._plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self.heard_s = now_s
            if self._take(parts):
                return True
        return False

    def close(self) -> None:
        self.socket.close(linger=0)

    def _take(self, parts: Sequence[bytes]) -> bool:
        if len(parts) != 3 or parts[0]:
            raise SnapshotError(f"a snapshot message has {len(parts)} parts, 3 are expected")
        kind, payload = parts[1], parts[2]
        if kind == b"header":
            self.header = _header(payload)
        elif kind == b"chunk" and self.header is not None:
            self._keep(_decoded(payload, list[SnapshotRecord]))
        elif kind == b"end" and self.header is not None:
            if len(self.events) != self.header.record_count:
                raise SnapshotError(f"{len(self.events)} records came, the header told {self.header.record_count}")
            return True
        else:
            raise SnapshotError(f"{kind[:40]!r}: {payload[:200]!r}")
        return False

    def _keep(self, records: list[SnapshotRecord]) -> None:
        assert self.header is not None
        if len(self.events) + len(records) > self.header.record_count:
            raise SnapshotError(f"more records than the {self.header.record_count} of the header")
        self.events += [BlocksStored(record.block_hashes, record.parent_block_hash, Tier.L1, 0) for record in records]


def _header(payload: bytes) -> SnapshotHeader:
    header = _decoded(payload, SnapshotHeader)
    if header.version != SNAPSHOT_VERSION or not 0 <= header.record_count <= MAX_RECORDS:
        raise SnapshotError(f"version {header.version} with {header.record_count} records is not readable")
    if header.barrier_seq < 0 or header.resume_seq != header.barrier_seq + 1:
        raise SnapshotError(f"batch {header.resume_seq} cannot follow a cut at {header.barrier_seq}")
    return header


def _decoded(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SnapshotError(f"unreadable snapshot message: {error}") from None
