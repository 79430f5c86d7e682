"""On which node a page's bytes should lie, asked when a node has more than it can hold."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from kvtier.page.key import PageKey
from kvtier.settings.ranges import Share


class NodeRoom(msgspec.Struct, frozen=True):
    """One node as its last report described it; dead nodes are not listed."""

    node: str
    free_bytes: int
    pool_bytes: int


class PlaceLocal(msgspec.Struct, frozen=True, tag="local", tag_field="policy", forbid_unknown_fields=True):
    """Where it was computed, always."""

    def place(self, key: PageKey, length: int, here: str, nodes: Sequence[NodeRoom]) -> str:
        return here


class PlaceMostFree(msgspec.Struct, frozen=True, tag="most_free", tag_field="policy", forbid_unknown_fields=True):
    """The node with the largest free share, if it is freer than here by `margin_share`."""

    margin_share: Share = 0.1

    def place(self, key: PageKey, length: int, here: str, nodes: Sequence[NodeRoom]) -> str:
        free = {room.node: room.free_bytes / room.pool_bytes for room in nodes if room.free_bytes >= length}
        if not free:
            return here
        best = max(free, key=lambda node: (free[node], node))
        return best if free[best] >= free.get(here, 0.0) + self.margin_share else here


class PlaceSpread(msgspec.Struct, frozen=True, tag="spread", tag_field="policy", forbid_unknown_fields=True):
    """By rendezvous hashing among the nodes with room: the same page goes to the same node whoever asks."""

    def place(self, key: PageKey, length: int, here: str, nodes: Sequence[NodeRoom]) -> str:
        able = [room.node for room in nodes if room.free_bytes >= length]
        return max(able, key=lambda node: blake2b(key + node.encode(), digest_size=8).digest(), default=here)


PlacementPolicy = PlaceLocal | PlaceMostFree | PlaceSpread
