"""One run of pages in the emulated radix cache, and the lazily ordered queues that find the oldest leaf."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from engine_adapters.emulator.model.request import SHARED, Namespace


class PageNode:
    """Pages that share one fate: same parent, same tiers, same lock.

    `device_children` counts children with pages on the device; `locks` counts the requests and copies that need the path from
    the root to here.
    """

    __slots__ = (
        "backup",
        "children",
        "device_children",
        "first_page",
        "hashes",
        "locks",
        "namespace",
        "on_device",
        "on_host",
        "parent",
        "queued",
        "tokens",
        "used",
    )

    def __init__(
        self,
        parent: PageNode | None,
        hashes: tuple[int, ...],
        tokens: Sequence[int] | None = None,
        first_page: int = 0,
        namespace: Namespace = SHARED,
    ) -> None:
        self.parent = parent
        self.namespace: Namespace = namespace if parent is None else parent.namespace
        self.hashes = hashes
        self.tokens = tokens
        self.first_page = first_page
        self.children: dict[int, PageNode] = {}
        self.on_device = False
        self.on_host = False
        self.device_children = 0
        self.locks = 0
        self.used = 0
        self.backup: list[PageNode] | None = None  # the write to the host tier this node is part of, while it runs
        self.queued: set[int] = set()  # the leaf queues that hold this node

    @property
    def parent_hash(self) -> int | None:
        return self.parent.hashes[-1] if self.parent is not None and self.parent.hashes else None

    @property
    def depth(self) -> int:
        """Pages before its first one."""
        pages, at = 0, self.parent
        while at is not None:
            pages += len(at.hashes)
            at = at.parent
        return pages


class LeafQueue:
    """Nodes by last use, oldest first. Entries may be stale; `pop` checks them, so a touch costs nothing."""

    def __init__(self, number: int, evictable: Callable[[PageNode], bool]) -> None:
        self._number = number
        self._evictable = evictable
        self._heap: list[tuple[int, int, PageNode]] = []
        self._pushed = 0

    def offer(self, node: PageNode) -> None:
        """Consider `node` for eviction if it is a leaf now; offering it twice is harmless."""
        if self._number not in node.queued and self._evictable(node):
            self._push(node)

    def pop(self) -> PageNode | None:
        """The least recently used evictable node, or None."""
        while self._heap:
            used, _, node = heapq.heappop(self._heap)
            node.queued.discard(self._number)
            if not self._evictable(node):
                continue
            if node.used != used:
                self._push(node)
                continue
            return node
        return None

    def clear(self) -> None:
        self._heap.clear()

    def _push(self, node: PageNode) -> None:
        node.queued.add(self._number)
        self._pushed += 1
        heapq.heappush(self._heap, (node.used, self._pushed, node))
