"""The tiers of every node as plain rows, from what agents told: for the admin API and for Prometheus alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from costmodel.values import Tier
from router.tiers.nodes import Nodes

_BYTES, _BUSY = "moved_bytes:", "moved_busy_ms:"
_WAYS = {tier.name: tier for tier in (Tier.L3, Tier.L4)}


class TierRow(msgspec.Struct, frozen=True):
    """One tier of one node. Counters since the agent's start; `pages` are whole pages that the gateway follows."""

    node: str
    tier: str
    capacity_bytes: float
    used_bytes: float
    pages: int
    hits: float
    evictions: float
    checksum_failures: float
    leases: float = 0.0
    pinned_bytes: float = 0.0


class LinkRow(msgspec.Struct, frozen=True):
    """What the pages that came to `node` from `source` showed of the link between them, since the agent's start."""

    node: str
    source: str
    bytes_per_ms: float


def tier_rows(nodes: Nodes, pages: Mapping[str, Mapping[Tier, int]]) -> Iterator[TierRow]:
    """`pages` by node and tier. Nodes that have never answered have no rows, tiers that a node does not have neither."""
    for name, node in nodes.by_name.items():
        if node.report is None:
            continue
        told, held = node.report.numbers, pages.get(name, {})
        yield TierRow(
            name,
            Tier.L3.name,
            told.get("dram_bytes", 0.0),
            told.get("dram_used_bytes", 0.0),
            held.get(Tier.L3, 0),
            told.get("dram_hits", 0.0),
            told.get("evicted", 0.0),
            told.get("corrupt_dram", 0.0) + told.get("corrupt_received", 0.0),
            told.get("leases", 0.0),
            told.get("pinned_bytes", 0.0),
        )
        if told.get("ssd_bytes"):
            yield TierRow(
                name,
                Tier.L4.name,
                told["ssd_bytes"],
                told.get("ssd_live_bytes", 0.0),
                held.get(Tier.L4, 0),
                told.get("ssd_hits", 0.0),
                told.get("ssd_forgotten", 0.0),
                told.get("corrupt_ssd", 0.0),
            )


def link_rows(nodes: Nodes) -> Iterator[LinkRow]:
    for name, node in nodes.by_name.items():
        for each in moved(node.report.numbers) if node.report is not None else ():
            if each.source and each.busy_ms > 0:
                yield LinkRow(name, each.source, each.size_bytes / each.busy_ms)


class Moved(NamedTuple):
    """What came by one way since the agent's start. `source`: "" for the node's own memory or SSD."""

    tier: Tier
    source: str
    size_bytes: float
    busy_ms: float


def moved(numbers: Mapping[str, float]) -> Iterator[Moved]:
    """By the agents' names `moved_bytes:WAY` and `moved_busy_ms:WAY`; ways are `L3`, `L3:NODE` and `L4`."""
    for name, size_bytes in numbers.items():
        way = name.removeprefix(_BYTES)
        tier, _, source = way.partition(":")
        busy_ms = numbers.get(_BUSY + way)
        if way != name and tier in _WAYS and busy_ms is not None:
            yield Moved(_WAYS[tier], source, size_bytes, busy_ms)
