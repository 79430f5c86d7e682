"""Which page goes next, for every length class: rows of pages that were queued together, in a heap by their least worthy pages.

A touch raises a page's worth without telling the queue; pages that surface with an old worth leave their row for another. Pages
that cannot go (held, pinned) fall out when they surface and are pushed again when they can. So touching costs nothing, and
because pages of a prompt come, are read and go together, there are few rows, and an eviction looks at few pages but the one
that goes. What was pushed is looked at when there is time, or a victim is looked for. A run is queued as one page would be, in
a row of its own, and anew when it has lost its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import cast

import msgspec

from kvtier.policies.eviction import EvictionPolicy, Worth
from kvtier.store.page import Page
from kvtier.store.run import Run
from kvtier.store.slabs import class_bytes

_SLACK = 64

Victim = Page | Run


class _Row(msgspec.Struct):
    """Pages and their worths when the row was made, the least worthy last. Those that bear another ticket count no more."""

    ticket: int
    pages: list[Victim]
    worths: list[Worth]


_Entry = tuple[Worth, int, _Row]  # the least worth in a row, and a number of its own


class _Class(msgspec.Struct):
    """The pages of one length class: `live` of the `entries` count."""

    heap: list[_Entry] = []
    pushed: list[tuple[int, Sequence[Victim]]] = []  # with the ticket of each; no rows yet
    entries: int = 0
    live: int = 0


class VictimQueue:
    """Invariant: every evictable page has exactly one live entry, the one whose ticket the page bears."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._classes: dict[int, _Class] = {}
        self._next_number = 1

    def push(self, pages: Sequence[Victim]) -> None:
        """Pages of one length that may go from now on. Also after a worth was lowered; an older entry then counts no more."""
        if not pages:
            return
        queue = self._classes.setdefault(class_bytes(pages[0].length), _Class())
        ticket = self._number()
        for page in pages:
            queue.live += not page.ticket
            page.ticket = ticket
        queue.pushed.append((ticket, pages))
        queue.entries += len(pages)
        if queue.entries > 2 * queue.live + _SLACK:
            self._compact(queue)

    def forget(self, page: Victim) -> None:
        """The page has gone some other way."""
        if page.ticket:
            page.ticket = 0
            self._classes[class_bytes(page.length)].live -= 1

    def pop(self, size: int, count: int) -> list[Page]:
        """The next victims of a class, `count` at most, no longer queued: up to the next run."""
        victims: list[Page] = []
        while len(victims) < count and isinstance(self.peek(size), Page):
            victims += cast("list[Page]", self._take_last(self._classes[size], count - len(victims)))  # a row has no other
        return victims

    def peek(self, size: int) -> Victim | None:
        queue = self._classes.get(size)
        if queue is None:
            return None
        self._take_in(queue)
        heap = queue.heap
        while heap:
            worth, number, row = heap[0]
            if not row.pages:
                heappop(heap)
            elif row.worths[-1] > worth:
                heapreplace(heap, (row.worths[-1], number, row))
            elif row.pages[-1].ticket != row.ticket:
                _drop_last(queue, row)
            elif not row.pages[-1].evictable:
                self.forget(row.pages[-1])
                _drop_last(queue, row)
            elif self._policy.worth(row.pages[-1]) > worth:
                self._split(queue, row)
            else:
                return row.pages[-1]
        return None

    def coldest(self) -> Victim | None:
        """The next victim over all classes; it stays where it is."""
        heads = [(self._policy.worth(head), size, head) for size in self._classes if (head := self.peek(size)) is not None]
        return min(heads)[2] if heads else None

    def take_in(self) -> None:
        """What was pushed, while there is time."""
        for queue in self._classes.values():
            self._take_in(queue)

    def worth(self, page: Victim) -> Worth:
        return self._policy.worth(page)

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _take_last(self, queue: _Class, count: int) -> list[Victim]:
        """Of the first row, as long as its pages may go, were not touched and are the least worthy of all. The first is."""
        row, others = queue.heap[0][2], [worth for worth, *_ in queue.heap[1:3]]
        pages, worths, ticket, worth_of = row.pages, row.worths, row.ticket, self._policy.worth
        limit = min(others) if others else worths[0]
        first, stop = len(pages), max(0, len(pages) - count)
        while first > stop:
            page, worth = pages[first - 1], worths[first - 1]
            if worth > limit or page.ticket != ticket or not page.evictable or worth_of(page) > worth:
                break
            page.ticket = 0
            first -= 1
        taken = pages[: first - 1 : -1] if first else pages[::-1]
        del pages[first:], worths[first:]
        queue.entries -= len(taken)
        queue.live -= len(taken)
        return taken

    def _split(self, queue: _Class, row: _Row) -> None:
        """The pages at its end that were touched, as far as they are neighbours, become a row of their own."""
        touched = []
        while row.pages and self._policy.worth(row.pages[-1]) > row.worths[-1]:
            touched.append(row.pages[-1])
            _drop_last(queue, row)
        self._enter(queue, row.ticket, touched)

    def _take_in(self, queue: _Class) -> None:
        for ticket, pages in queue.pushed:
            queue.entries -= len(pages)
            self._enter(queue, ticket, pages)
        queue.pushed.clear()

    def _enter(self, queue: _Class, ticket: int, pages: Sequence[Victim]) -> None:
        pages = [page for page in pages if page.ticket == ticket]
        if not pages:
            return
        worths = list(map(self._policy.worth, pages))
        order = sorted(range(len(pages)), key=worths.__getitem__, reverse=True)
        row = _Row(ticket, [pages[index] for index in order], [worths[index] for index in order])
        queue.entries += len(pages)
        heappush(queue.heap, (row.worths[-1], self._number(), row))

    def _compact(self, queue: _Class) -> None:
        rows = [row for _, _, row in queue.heap]
        queue.entries = sum(len(pages) for _, pages in queue.pushed)
        queue.heap = []
        for row in rows:
            self._enter(queue, row.ticket, row.pages)
        self._take_in(queue)


def _drop_last(queue: _Class, row: _Row) -> None:
    del row.pages[-1], row.worths[-1]
    queue.entries -= 1
