"""The emulated engine's prefix cache: a radix tree over page hashes with a device and an optional host tier.

It knows pages, tiers, locks and age. It refuses to know requests, time and wire formats. Hashes are chained, so two pages with
the same hash have the same whole prefix behind them; a run is compared as one slice, never token by token.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from costmodel.values import Tier
from engine_adapters.emulator.model.page_events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from engine_adapters.emulator.model.page_node import LeafQueue, PageNode
from engine_adapters.emulator.model.request import SHARED, Namespace

_MAX_NAMESPACES = 4_096  # empty roots are swept beyond this many


class Match(NamedTuple):
    """`device_pages` leading pages are on the device, `host_pages` more behind them only on the host; `node` ends the match."""

    node: PageNode
    device_node: PageNode
    device_pages: int
    host_pages: int


class PageCache:
    """Counts are pages. `private_pages` are those that running requests hold outside the tree.

    `page_tokens` is only needed where token ids are given to `insert`: a node keeps those of its own pages.
    """

    def __init__(self, device_capacity: int, host_capacity: int = 0, page_tokens: int = 1) -> None:
        self.device_capacity = device_capacity
        self.page_tokens = page_tokens
        self.host_capacity = host_capacity
        self.events: list[PageEvent] = []
        self.to_backup: list[PageNode] = []
        self.private_pages = 0
        self.device_pages = 0
        self.host_pages = 0
        self.locked_pages = 0
        self.evicted_pages = 0  # from the device, since the start
        self.life = 0  # grows when all is emptied: copies that are under way then end in nothing
        self._roots: dict[Namespace, PageNode] = {}
        self._tick = 0
        self._device_leaves = LeafQueue(0, _device_leaf)
        self._host_leaves = LeafQueue(1, _host_leaf)

    @property
    def free_pages(self) -> int:
        return self.device_capacity - self.device_pages - self.private_pages

    @property
    def reclaimable_pages(self) -> int:
        """Free now or after eviction of everything that nobody uses."""
        return self.device_capacity - self.private_pages - self.locked_pages

    def match(self, hashes: Sequence[int], namespace: Namespace = SHARED) -> Match:
        """The longest known prefix of `hashes`. Splits the node where the match ends and refreshes the age of the path."""
        node = device_node = self._root(namespace)
        at = device = 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                break
            if not child.on_device and not child.on_host:
                break
            shared = _shared(child.hashes, hashes, at)
            if shared < len(child.hashes):
                child = self._split(child, shared)
            at += shared
            node = child
            self._touch(node)
            if node.on_device:
                device, device_node = at, node
        return Match(node, device_node, device, at - device)

    def lock(self, node: PageNode) -> None:
        """Keep the path to `node` from eviction."""
        at: PageNode | None = node
        while at is not None:
            if at.locks == 0 and at.on_device:
                self.locked_pages += len(at.hashes)
            at.locks += 1
            at = at.parent

    def unlock(self, node: PageNode) -> None:
        at: PageNode | None = node
        while at is not None:
            at.locks -= 1
            if at.locks == 0:
                if at.on_device:
                    self.locked_pages -= len(at.hashes)
                self._device_leaves.offer(at)
                self._host_leaves.offer(at)
            at = at.parent

    def insert(
        self, hashes: Sequence[int], tokens: Sequence[int] | None, namespace: Namespace = SHARED
    ) -> tuple[PageNode, int]:
        """Put `hashes` on the device; (the last node, how many pages were new there). The caller accounts its private pages."""
        node = self._root(namespace)
        at = new = 0
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                child = PageNode(node, tuple(hashes[at:]), self._own_tokens(tokens, at, len(hashes)))
                node.children[hashes[at]] = child
                shared = len(child.hashes)
            else:
                shared = _shared(child.hashes, hashes, at)
                if shared < len(child.hashes):
                    child = self._split(child, shared)
            if not child.on_device:
                new += shared
                self._put_on_device(child)
            elif self.host_capacity and not child.on_host and child.backup is None:
                self.to_backup.append(child)  # refused earlier for lack of host room
            self._touch(child)
            self._device_leaves.offer(child)
            at += shared
            node = child
        return node, new

    def reserve(self, pages: int) -> bool:
        """Make `pages` device pages free by evicting old leaves; False (and nothing promised) if that cannot be done."""
        if self.reclaimable_pages < pages:
            return False
        while self.free_pages < pages:
            node = self._device_leaves.pop()
            if node is None:
                return False
            self._evict_from_device(node)
        return True

    def load_back(self, match: Match) -> int:
        """Bring the host part of a match to the device, for which the caller has reserved room and locked the path."""
        path: list[PageNode] = []
        node = match.node
        while node is not match.device_node and node.parent is not None:
            path.append(node)
            node = node.parent
        for node in reversed(path):
            if not node.on_device:
                self._put_on_device(node)
        return sum(len(node.hashes) for node in path)

    def insert_host(self, hashes: Sequence[int], namespace: Namespace = SHARED) -> int:
        """Put into the host tier what of `hashes` is in no tier, as far as there is room; how many pages that were."""
        node, at = self._root(namespace), 0
        while at < len(hashes) and (child := node.children.get(hashes[at])) is not None:
            shared = _shared(child.hashes, hashes, at)
            node = child if shared == len(child.hashes) else self._split(child, shared)
            at += shared
            self._touch(node)
        if at == len(hashes) or (node.hashes and not node.on_host):
            return 0
        self.lock(node)
        pages = len(hashes) - at
        while self.host_pages + pages > self.host_capacity and (victim := self._host_leaves.pop()) is not None:
            self._drop_from_host(victim)
        pages = min(pages, self.host_capacity - self.host_pages)
        self.unlock(node)
        if pages <= 0:
            return 0
        child = PageNode(node, tuple(hashes[at : at + pages]))
        child.on_host = True
        node.children[hashes[at]] = child
        self.host_pages += pages
        self._touch(child)
        self._host_leaves.offer(child)
        self.events.append(_stored(child, Tier.L2))
        return pages

    def begin_backup(self, node: PageNode) -> bool:
        """Reserve host room for a write of `node`; it stays locked until `end_backup`."""
        pages = len(node.hashes)
        if node.on_host or node.backup is not None or not node.on_device or pages > self.host_capacity:
            return False
        if node.parent is not None and node.parent.hashes and not (node.parent.on_host or node.parent.backup):
            return False
        while self.host_pages + pages > self.host_capacity:
            victim = self._host_leaves.pop()
            if victim is None:
                return False
            self._drop_from_host(victim)
        self.host_pages += pages
        node.backup = [node]
        self.lock(node)
        return True

    def end_backup(self, node: PageNode) -> int:
        """The write that `begin_backup` announced is done; parts of a node split meanwhile are reported together. Its pages."""
        parts = node.backup or []
        for part in parts:
            part.on_host = True
            part.backup = None
            self.events.append(_stored(part, Tier.L2))
        self.unlock(node)
        return sum(len(part.hashes) for part in parts)

    def clear(self) -> None:
        """Empty every tier. Only an idle engine may do this: running requests would lose their pages."""
        self.life += 1
        self._roots.clear()
        self._device_leaves.clear()
        self._host_leaves.clear()
        self.to_backup.clear()
        self.device_pages = self.host_pages = self.locked_pages = 0
        self.events.append(PagesCleared())

    def take_events(self) -> list[PageEvent]:
        taken, self.events = self.events, []
        return taken

    def _own_tokens(self, tokens: Sequence[int] | None, first: int, last: int) -> array[int] | None:
        """The ids of these pages alone: a node must not keep a whole prompt alive."""
        if tokens is None:
            return None
        return array("I", tokens[first * self.page_tokens : last * self.page_tokens])

    def _root(self, namespace: Namespace) -> PageNode:
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) >= _MAX_NAMESPACES:
                self._roots = {name: old for name, old in self._roots.items() if old.children or old.locks}
            root = self._roots[namespace] = PageNode(None, (), namespace=namespace)
        return root

    def _touch(self, node: PageNode) -> None:
        self._tick += 1
        node.used = self._tick

    def _split(self, node: PageNode, pages: int) -> PageNode:
        """Cut `node` after `pages`; the new upper part takes its place below its parent and is returned."""
        upper = PageNode(node.parent, node.hashes[:pages], node.tokens, node.first_page)
        upper.on_device, upper.on_host, upper.locks, upper.used = node.on_device, node.on_host, node.locks, node.used
        upper.backup = node.backup
        upper.device_children = int(node.on_device)
        upper.children = {node.hashes[pages]: node}
        if node.backup is not None:
            node.backup.insert(node.backup.index(node), upper)
        if node.parent is not None:
            node.parent.children[upper.hashes[0]] = upper
        node.parent = upper
        node.hashes = node.hashes[pages:]
        node.first_page += pages
        return upper

    def _put_on_device(self, node: PageNode) -> None:
        node.on_device = True
        self.device_pages += len(node.hashes)
        if node.locks:
            self.locked_pages += len(node.hashes)
        if node.parent is not None:
            node.parent.device_children += 1
        self.events.append(_stored(node, Tier.L1))
        if self.host_capacity and not node.on_host:
            self.to_backup.append(node)

    def _evict_from_device(self, node: PageNode) -> None:
        node.on_device = False
        self.device_pages -= len(node.hashes)
        self.evicted_pages += len(node.hashes)
        self.events.append(PagesRemoved(node.hashes, Tier.L1))
        parent = node.parent
        if parent is not None:
            parent.device_children -= 1
            if not node.on_host:
                del parent.children[node.hashes[0]]
            self._device_leaves.offer(parent)
        self._host_leaves.offer(node)

    def _drop_from_host(self, node: PageNode) -> None:
        node.on_host = False
        self.host_pages -= len(node.hashes)
        self.events.append(PagesRemoved(node.hashes, Tier.L2))
        if node.parent is not None:
            del node.parent.children[node.hashes[0]]
            self._host_leaves.offer(node.parent)


def _stored(node: PageNode, tier: Tier) -> PagesStored:
    return PagesStored(node.hashes, node.parent_hash, tier, node.tokens, node.first_page, node.namespace.cache_salt)


def _device_leaf(node: PageNode) -> bool:
    return node.on_device and node.locks == 0 and node.device_children == 0 and node.parent is not None


def _host_leaf(node: PageNode) -> bool:
    return node.on_host and not node.on_device and node.locks == 0 and not node.children


def _shared(run: tuple[int, ...], hashes: Sequence[int], at: int) -> int:
    """How many leading pages of `run` equal `hashes[at:]`. Chained hashes: the first difference can be bisected."""
    limit = min(len(run), len(hashes) - at)
    if run[limit - 1] == hashes[at + limit - 1]:
        return limit
    low, high = 0, limit - 1  # run[low] is shared (the caller found it by its first hash), run[high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if run[middle] == hashes[at + middle]:
            low = middle
        else:
            high = middle
    return low + 1
