"""Who is registered with the master, and how far its events have come: a state machine over heartbeats, without I/O.

It differs from UMBP's own master where that forgets (mori 624002c8): a client that was expired must send everything again
before its pages are believed, bundles that were applied before are skipped instead of asking for a full sync, and a keepalive
without events brings its capacities, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec


class Status(IntEnum):
    UNKNOWN = 0
    ALIVE = 1
    EXPIRED = 2


class Capacity(msgspec.Struct, frozen=True, array_like=True):
    tier: int
    total_bytes: int
    available_bytes: int


class Client(msgspec.Struct, array_like=True):
    node_id: str
    node_address: str = ""
    peer_address: str = ""
    engine_desc: bytes = b""
    tags: tuple[str, ...] = ()
    capacities: tuple[Capacity, ...] = ()
    last_seq: int = 0
    synced: bool = True  # what it reported is all it holds
    alive: bool = True
    heard_ms: float = 0.0


class AlreadyRegistered(Exception):
    """A client of that id is alive at another address."""


class Beat(msgspec.Struct, frozen=True):
    """What to make of a heartbeat: replace everything (`full`), apply the bundles from `first` on, or neither."""

    status: Status
    acked_seq: int = 0
    request_full_sync: bool = False
    full: bool = False
    first: int = 0  # index of the first bundle that is new
    revived: bool = False


class Clients:
    """`expire_ms`: a client not heard of for so long is expired."""

    def __init__(self, expire_ms: float) -> None:
        self.by_id: dict[str, Client] = {}
        self._expire_ms = expire_ms

    def register(self, client: Client) -> None:
        """A new life of this client. Raises `AlreadyRegistered`."""
        known = self.by_id.get(client.node_id)
        told = known is not None and known.peer_address and client.peer_address
        if known is not None and known.alive and told and known.peer_address != client.peer_address:
            raise AlreadyRegistered(f"{client.node_id} is alive at {known.peer_address}, not {client.peer_address}")
        if known is not None and not client.peer_address:  # the re-registration of a UMBP client leaves these out
            client.peer_address, client.engine_desc = known.peer_address, known.engine_desc
        self.by_id[client.node_id] = client

    def beat(
        self, node_id: str, seqs: Sequence[int], capacities: tuple[Capacity, ...], full: bool, baseline: int, now_ms: float
    ) -> Beat:
        """`seqs`: the numbers of the bundles that came, in order."""
        client = self.by_id.get(node_id)
        if client is None:
            return Beat(Status.UNKNOWN)
        revived = not client.alive
        client.alive = True
        client.heard_ms = now_ms
        client.capacities = capacities or client.capacities
        if full:
            client.synced = True
            client.last_seq = baseline or max(seqs, default=0)
            return Beat(Status.ALIVE, client.last_seq, full=True, revived=revived)
        first = sum(seq <= client.last_seq for seq in seqs)
        fresh = seqs[first:]
        in_order = all(seq == client.last_seq + 1 + place for place, seq in enumerate(fresh))
        if not client.synced or not in_order:
            client.synced = False
            return Beat(Status.ALIVE, client.last_seq, request_full_sync=True, first=len(seqs), revived=revived)
        if fresh:
            client.last_seq = fresh[-1]
        return Beat(Status.ALIVE, client.last_seq, first=first, revived=revived)

    def expire(self, now_ms: float) -> list[str]:
        """Who has just been found silent for too long. Its pages must come anew."""
        gone = [each for each in self.by_id.values() if each.alive and now_ms - each.heard_ms >= self._expire_ms]
        for client in gone:
            client.alive = False
            client.synced = False
        return [client.node_id for client in gone]

    def alive(self, node_id: str) -> bool:
        client = self.by_id.get(node_id)
        return client is not None and client.alive

    def address(self, node_id: str) -> str:
        client = self.by_id.get(node_id)
        return client.peer_address if client is not None else ""
