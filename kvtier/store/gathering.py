"""What is brought together in DRAM for one who waits for it, and kept there meanwhile."""

from __future__ import annotations

import msgspec

from kvtier.page.key import PageKey
from kvtier.store.page import Page


class Gathering(msgspec.Struct):
    """Each page is sent for once: one that came and was pushed out before it could be held had no room, and has none now."""

    held: dict[int, Page] = {}  # by generation
    sent_for: set[PageKey] = set()  # that were on SSD alone
    coming_bytes: int = 0  # of what is on its way
    full: bool = False  # something was left where it is for want of room

    @property
    def claimed_bytes(self) -> int:
        """That count against the room of those who gather, held or still to come; who pins a page has room of its own."""
        return self.coming_bytes + sum(page.length for page in self.held.values() if not page.pins)
