"""Pins: pages that must stay, for a while, up to a share of the pool.

A pin is a promise with an end: every pin has a deadline, and all pins together may hold only so many bytes, else a workload
that pins much starves everyone else (and Sutradhara's half-finished requests would never be given up).
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from kvtier.store.page import Page


class Pin(msgspec.Struct):
    id: int
    pages: list[Page]
    deadline_ms: float


class Pins:
    """All pins of a node; counts `Page.pins`, and bytes once however often a page is pinned."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.pinned_bytes = 0
        self._pins: dict[int, Pin] = {}
        self._next = 1

    def add(self, pages: list[Page], deadline_ms: float) -> Pin | None:
        """Pin all of them, or none (None) where that would exceed the cap."""
        distinct = {page.key: page for page in pages}
        fresh = sum(page.length for page in distinct.values() if not page.pins)
        if self.pinned_bytes + fresh > self.max_bytes:
            return None
        self.pinned_bytes += fresh
        pin = Pin(self._next, list(distinct.values()), deadline_ms)
        self._next += 1
        self._pins[pin.id] = pin
        for page in pin.pages:
            page.pins += 1
        return pin

    def most(self, pages: list[Page]) -> int:
        """How many leading ones the cap allows where nothing else is pinned."""
        sizes = {page.key: page.length for page in pages}
        return sum(total <= self.max_bytes for total in accumulate(sizes.values()))

    def remove(self, pin_id: int) -> list[Page] | None:
        """The pages that nothing pins any more; None for a pin that is not there."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return None
        loose = []
        for page in pin.pages:
            page.pins -= 1
            if not page.pins:
                self.pinned_bytes -= page.length
                loose.append(page)
        return loose

    def expired(self, now_ms: float) -> list[int]:
        return [pin.id for pin in self._pins.values() if pin.deadline_ms <= now_ms]

    def listed(self) -> list[Pin]:
        return list(self._pins.values())
