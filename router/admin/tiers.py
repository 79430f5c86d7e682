"""The nodes' part of `GET /admin/tiers`: what lies where, how nodes fare, and what their links showed."""

from __future__ import annotations

import msgspec

from router.gateway import Gateway
from router.tiers.nodes import Node
from router.tiers.tier_rows import link_rows, tier_rows


def node_tiers(gateway: Gateway) -> dict[str, object]:
    tiers, now_ms = gateway.tiers, gateway.clock()
    return {
        "nodes": [_node_view(name, node, now_ms) for name, node in tiers.nodes.by_name.items()],
        "tiers": [msgspec.to_builtins(row) for row in tier_rows(tiers.nodes, tiers.pages())],
        "links": [msgspec.to_builtins(row) for row in link_rows(tiers.nodes)],
        "pins": len(tiers.pins.listed()),
    }


def _node_view(name: str, node: Node, now_ms: float) -> dict[str, object]:
    report = node.report
    return {
        "node": name,
        "up": not node.fault,
        "fault": node.fault,
        "age_ms": round(now_ms - node.heard_ms, 1) if report is not None else None,
        "epoch": report.epoch if report is not None else None,
        "spaces": [msgspec.to_builtins(space) for space in report.spaces] if report is not None else [],
        "numbers": report.numbers if report is not None else {},
    }
