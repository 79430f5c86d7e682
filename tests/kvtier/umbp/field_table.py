"""UMBP's messages as bytes made by hand from its field numbers (mori 624002c8, umbp.proto), not from our definitions."""

from __future__ import annotations

from collections.abc import Iterable

HBM, DRAM, SSD = 1, 2, 3
ADD, REMOVE = 0, 1


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field; proto3 leaves zeros out."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: str) -> bytes:
    return blob(field, value.encode()) if value else b""


def blob(field: int, value: bytes) -> bytes:
    """A length-delimited field, present even where empty."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def texts(field: int, values: Iterable[str]) -> bytes:
    return b"".join(blob(field, value.encode()) for value in values)


def packed(field: int, values: Iterable[int]) -> bytes:
    body = b"".join(map(varint, values))
    return blob(field, body) if body else b""


def tier_capacity(tier: int, total: int, available: int) -> bytes:
    return number(1, tier) + number(2, total) + number(3, available)


def register(
    node_id: str,
    node_address: str,
    peer_address: str,
    *,
    capacities: Iterable[bytes] = (),
    engine: bytes = b"",
    tags: Iterable[str] = (),
) -> bytes:
    parts = [text(1, node_id), text(2, node_address), *(blob(3, each) for each in capacities), text(4, peer_address)]
    return b"".join(parts) + (blob(5, engine) if engine else b"") + texts(13, tags)


def kv_event(kind: int, key: str, tier: int, size: int) -> bytes:
    return number(1, kind) + text(2, key) + number(3, tier) + number(4, size)


def bundle(seq: int, events: Iterable[bytes]) -> bytes:
    return number(1, seq) + b"".join(blob(2, event) for event in events)


def heartbeat(
    node_id: str, bundles: Iterable[bytes] = (), *, full: bool = False, capacities: Iterable[bytes] = (), baseline: int = 0,
    counts: Iterable[tuple[int, int]] = (),
) -> bytes:  # fmt: skip
    return (
        text(1, node_id)
        + b"".join(blob(2, each) for each in bundles)
        + number(3, int(full))
        + b"".join(blob(4, each) for each in capacities)
        + number(6, baseline)
        + b"".join(blob(7, number(1, tier) + number(2, count)) for tier, count in counts)
    )


def heartbeat_reply(status: int, acked: int = 0, full_sync: bool = False) -> bytes:
    return number(1, status) + number(2, acked) + number(3, int(full_sync))


def tier_hashes(tier: int, hashes: Iterable[str]) -> bytes:
    return number(1, tier) + texts(2, hashes)


def node_match(node_id: str, peer_address: str, tiers: Iterable[bytes]) -> bytes:
    return text(1, node_id) + text(2, peer_address) + b"".join(blob(3, each) for each in tiers)
