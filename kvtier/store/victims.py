"""Which page goes next, for every length class: heaps of worths that are corrected as they surface.

A touch raises a page's worth without telling the heap; a page that surfaces with an old worth sinks back with the new one.
Pages that cannot go (held, pinned) fall out when they surface and are pushed again when they can. So touching costs nothing,
and an eviction costs a few heap steps.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from kvtier.policies.eviction import EvictionPolicy, Worth
from kvtier.store.page import Page
from kvtier.store.slabs import class_bytes

_Entry = tuple[Worth, int, Page]
_SLACK = 64


class VictimQueue:
    """Invariant: every evictable page has exactly one live entry, the one whose ticket the page bears."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heaps: dict[int, list[_Entry]] = {}
        self._live: dict[int, int] = {}
        self._next_ticket = 1

    def push(self, page: Page) -> None:
        """The page may go from now on. Also after its worth was lowered; an older entry then counts no more."""
        size = class_bytes(page.length)
        heap = self._heaps.get(size)
        if heap is None:
            heap, self._live[size] = self._heaps.setdefault(size, []), 0
        if not page.ticket:
            self._live[size] += 1
        page.ticket = ticket = self._next_ticket
        self._next_ticket = ticket + 1
        heappush(heap, (self._policy.worth(page), ticket, page))
        if len(heap) > 2 * self._live[size] + _SLACK:
            self._compact(size)

    def forget(self, page: Page) -> None:
        """The page has gone some other way."""
        if page.ticket:
            page.ticket = 0
            self._live[class_bytes(page.length)] -= 1

    def pop(self, size: int) -> Page | None:
        """The next victim of a class, no longer queued."""
        page = self.peek(size)
        if page is not None:
            heappop(self._heaps[size])
            self.forget(page)
        return page

    def peek(self, size: int) -> Page | None:
        heap = self._heaps.get(size)
        while heap:
            worth, ticket, page = heap[0]
            if page.ticket != ticket:
                heappop(heap)
            elif not page.evictable:
                heappop(heap)
                self.forget(page)
            elif (now_worth := self._policy.worth(page)) > worth:
                heapreplace(heap, (now_worth, ticket, page))
            else:
                return page
        return None

    def pop_coldest(self) -> Page | None:
        """The next victim over all classes."""
        heads = [(self._policy.worth(page), size) for size in self._heaps if (page := self.peek(size)) is not None]
        return self.pop(min(heads)[1]) if heads else None

    def worth(self, page: Page) -> Worth:
        return self._policy.worth(page)

    def _compact(self, size: int) -> None:
        heap = [entry for entry in self._heaps[size] if entry[2].ticket == entry[1]]
        heapify(heap)
        self._heaps[size] = heap
