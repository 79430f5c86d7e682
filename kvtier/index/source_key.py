"""Who may say that it holds blocks: a worker of its own cache, or a node of its share of the pool."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.values import WorkerKey


class NodeKey(NamedTuple):
    """One node's share of the pool, L3 and L4. `space` tells apart what one node says about several page spaces."""

    node: str
    space: str = ""


SourceKey = WorkerKey | NodeKey
