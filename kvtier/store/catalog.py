"""Every page of a node by its key, and the journal of what changed: the one place where a page enters or leaves a tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from costmodel.values import Tier
from kvtier.page.key import PageKey, space_of
from kvtier.store.journal import Journals
from kvtier.store.page import Page, SsdPlace

_MAX_MOVED = 65_536


class Catalog:
    """A page is listed exactly while it lies in DRAM or on SSD and is not doomed."""

    def __init__(self, journals: Journals) -> None:
        self.journals = journals
        self._pages: dict[PageKey, Page] = {}
        self._moved: OrderedDict[PageKey, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: PageKey) -> Page | None:
        return self._pages.get(key)

    def find(self, keys: Iterable[PageKey]) -> list[Page | None]:
        """Many at once."""
        return list(map(self._pages.get, keys))

    def pages(self) -> Iterable[Page]:
        return self._pages.values()

    def moved_to(self, key: PageKey) -> str | None:
        """The node that a page was handed to when it left here."""
        return self._moved.get(key)

    def note_moved(self, key: PageKey, node: str) -> None:
        self._moved[key] = node
        self._moved.move_to_end(key)
        if len(self._moved) > _MAX_MOVED:
            self._moved.popitem(last=False)

    def forget_moved(self, space: bytes) -> None:
        """Nothing of a space is known to lie elsewhere any more."""
        for key in [key for key in self._moved if space_of(key) == space]:
            del self._moved[key]

    def entered_dram(self, keys: Sequence[PageKey], pages: Iterable[Page]) -> None:
        """Pages and their keys."""
        self._list(keys, pages)
        self.journals.stored(keys, Tier.L3)

    def left_dram(self, pages: Iterable[Page]) -> None:
        listed = [page for page in pages if self._pages.get(page.key) is page]
        self.journals.removed([page.key for page in listed], Tier.L3)
        for page in listed:
            if page.place is None:
                del self._pages[page.key]

    def entered_ssd(self, page: Page, place: SsdPlace) -> None:
        page.place = place
        self._list((page.key,), (page,))
        self.journals.stored((page.key,), Tier.L4)

    def left_ssd(self, page: Page) -> None:
        page.place = None
        self.journals.removed((page.key,), Tier.L4)
        if not page.in_dram:
            self._pages.pop(page.key, None)

    def doom(self, page: Page) -> None:
        """Forget a page whose bytes in DRAM are still read by someone."""
        page.doomed = True
        self.journals.removed((page.key,), Tier.L3)
        del self._pages[page.key]

    def _list(self, keys: Sequence[PageKey], pages: Iterable[Page]) -> None:
        self._pages.update(zip(keys, pages, strict=True))
        if self._moved:
            for key in keys:
                self._moved.pop(key, None)
