"""Which page goes next, for every length class: heaps of worths that are corrected as they surface.

A touch raises a page's worth without telling the heap; a page that surfaces with an old worth sinks back with the new one.
Pages that cannot go (held, pinned) fall out when they surface and are pushed again when they can. So touching costs nothing,
and an eviction costs a few heap steps. What was pushed is put into its heap when a victim is looked for, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import msgspec

from kvtier.policies.eviction import EvictionPolicy, Worth
from kvtier.store.page import Page
from kvtier.store.slabs import class_bytes

_Entry = tuple[Worth, int, int, Page]  # with a number of its own, and the ticket
_SLACK = 64


class _Class(msgspec.Struct):
    """The pages of one length class: `live` of the entries count, the others' pages have gone or were pushed again."""

    heap: list[_Entry] = []
    pushed: list[tuple[int, Sequence[Page]]] = []  # with the ticket of each; not in the heap yet
    pushed_pages: int = 0
    live: int = 0


class VictimQueue:
    """Invariant: every evictable page has exactly one live entry, the one whose ticket the page bears."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._classes: dict[int, _Class] = {}
        self._next_ticket = 1
        self._next_number = 1

    def push(self, pages: Sequence[Page]) -> None:
        """Pages of one length that may go from now on. Also after a worth was lowered; an older entry then counts no more."""
        if not pages:
            return
        queue = self._classes.setdefault(class_bytes(pages[0].length), _Class())
        ticket = self._next_ticket
        self._next_ticket += 1
        for page in pages:
            queue.live += not page.ticket
            page.ticket = ticket
        queue.pushed.append((ticket, pages))
        queue.pushed_pages += len(pages)
        if len(queue.heap) + queue.pushed_pages > 2 * queue.live + _SLACK:
            self._compact(queue)

    def forget(self, page: Page) -> None:
        """The page has gone some other way."""
        if page.ticket:
            page.ticket = 0
            self._classes[class_bytes(page.length)].live -= 1

    def pop(self, size: int, count: int) -> list[Page]:
        """The next victims of a class, `count` at most, no longer queued."""
        victims: list[Page] = []
        while len(victims) < count and (page := self.peek(size)) is not None:
            queue = self._classes[size]
            heappop(queue.heap)
            queue.live -= 1
            page.ticket = 0
            victims.append(page)
        return victims

    def peek(self, size: int) -> Page | None:
        queue = self._classes.get(size)
        if queue is None:
            return None
        heap, worth_of = queue.heap, self._policy.worth
        for entry in self._entries_of_pushed(queue):
            heappush(heap, entry)
        while heap:
            worth, number, ticket, page = heap[0]
            if page.ticket != ticket:
                heappop(heap)
            elif not page.evictable:
                heappop(heap)
                self.forget(page)
            elif (now_worth := worth_of(page)) > worth:
                heapreplace(heap, (now_worth, number, ticket, page))
            else:
                return page
        return None

    def pop_coldest(self) -> Page | None:
        """The next victim over all classes."""
        heads = [(self._policy.worth(page), size) for size in self._classes if (page := self.peek(size)) is not None]
        return self.pop(min(heads)[1], 1)[0] if heads else None

    def worth(self, page: Page) -> Worth:
        return self._policy.worth(page)

    def _compact(self, queue: _Class) -> None:
        queue.heap = [entry for entry in queue.heap if entry[3].ticket == entry[2]]
        queue.heap += self._entries_of_pushed(queue)
        heapify(queue.heap)

    def _entries_of_pushed(self, queue: _Class) -> list[_Entry]:
        """None are left then."""
        entries = []
        for ticket, pages in queue.pushed:
            for page in pages:
                if page.ticket == ticket:
                    entries.append((self._policy.worth(page), self._next_number, ticket, page))
                    self._next_number += 1
        queue.pushed.clear()
        queue.pushed_pages = 0
        return entries
