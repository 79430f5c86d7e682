"""Every page of a node by its key, and the journal of what changed: the one place where a page enters or leaves a tier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import cast

from costmodel.values import Tier
from kvtier.page.key import PageKey, PageKeys, id_of, space_of
from kvtier.store.ids import make_ids
from kvtier.store.journal import Journals
from kvtier.store.page import Page, SsdPlace
from kvtier.store.run import Run

_MAX_MOVED = 65_536


class _Listed:
    """What is listed of one space: ids to numbers, of which a page has its own and a run one for all of its pages."""

    def __init__(self) -> None:
        self.ids = make_ids()
        self.entries: dict[int, Page | Run] = {}
        self._next = 1

    def get(self, number: int) -> Page | Run | None:
        """By id."""
        return self.entries.get(self.ids.get(number))

    def find(self, keys: PageKeys) -> list[Page | Run | None]:
        """Many by id."""
        return list(map(self.entries.get, self.ids.get_all(keys.digests)))

    def put_all(self, keys: PageKeys, pages: Sequence[Page]) -> None:
        """Under numbers of their own."""
        numbers = self.take(len(pages))
        self.entries.update(zip(numbers, pages, strict=True))
        self.ids.put_all(keys.digests, numbers.start, 1)

    def take(self, count: int) -> range:
        """Numbers that were not given before."""
        taken = range(self._next, self._next + count)
        self._next = taken.stop
        return taken


class Catalog:
    """A page is listed exactly while it lies in DRAM or on SSD and is not doomed, alone or in a run.

    Pages are listed by id: whoever enters one has seen to it that no other page of its space has the same (`fresh`,
    `has_room_for`). Who asks for a page of a run gets one: the run is told apart, and `on_apart` called with it.
    """

    def __init__(self, journals: Journals, on_apart: Callable[[Run], None]) -> None:
        self.journals = journals
        self._on_apart = on_apart
        self._spaces: dict[bytes, _Listed] = {}
        self._moved: OrderedDict[PageKey, str] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(listed.ids) for listed in self._spaces.values())

    def get(self, key: PageKey) -> Page | None:
        listed = self._spaces.get(space_of(key))
        entry = listed.get(id_of(key)) if listed is not None else None
        if isinstance(entry, Run):
            entry = self.tell_apart(entry)[entry.keys.ids.index(id_of(key))]
        return entry if entry is not None and entry.key == key else None

    def find(self, keys: Sequence[PageKey]) -> list[Page | None]:
        """Many of one space at once."""
        keys = PageKeys.of(keys)
        listed = self._spaces.get(keys.space)
        if listed is None:
            return [None] * len(keys)
        entries = listed.find(keys)
        runs = {entry for entry in entries if isinstance(entry, Run)} if Run in set(map(type, entries)) else ()
        for run in runs:
            self.tell_apart(run)
        return list(_named(listed.find(keys) if runs else entries, keys))

    def parts(self, keys: PageKeys) -> list[Page | Run | None]:
        """The same, but a run of which `keys` name all pages in their order is one part."""
        listed = self._spaces.get(keys.space)
        if listed is None:
            return [None] * len(keys)
        parts: list[Page | Run | None] = []
        at = 0
        while at < len(keys):
            entry = listed.get(keys.ids[at])
            if not isinstance(entry, Run) or not keys.names_at(at, entry.keys):
                return _still_whole(parts + self._parts_and_pages(listed, keys[at:] if at else keys))
            parts.append(entry)
            at += len(entry)
        return parts

    def _parts_and_pages(self, listed: _Listed, keys: PageKeys) -> list[Page | Run | None]:
        """The same where not all are runs: what is not a whole run is a page for itself."""
        entries = listed.find(keys)
        if Run not in set(map(type, entries)):
            return list(_named(entries, keys))
        parts: list[Page | Run | None] = []
        at = 0
        while at < len(keys):
            entry = entries[at]
            if isinstance(entry, Run) and entry.pages is None and keys.names_at(at, entry.keys):
                parts.append(entry)
                at += len(entry)
            else:
                parts.append(self.get(keys[at]))
                at += 1
        return parts

    def fresh(self, keys: PageKeys) -> bool:
        """Whether these are different pages, and no page has the id of any of them."""
        return self._listed(keys.space).ids.fresh(keys.digests)

    def has_room_for(self, key: PageKey) -> bool:
        """Whether a page of this name could be listed, or is: false beside another page with its id."""
        return not self.beside_others(PageKeys.of([key]), [self.get(key)])

    def beside_others(self, keys: PageKeys, found: Sequence[Page | Run | None]) -> list[int]:
        """Which of these cannot be listed, because another page has the id. `found` is what is listed of each."""
        numbers = self._listed(keys.space).ids.get_all(keys.digests)
        return [index for index, (number, each) in enumerate(zip(numbers, found, strict=True)) if number and each is None]

    def entries(self, space: bytes | None = None) -> list[Page | Run]:
        """All that is listed (of a space)."""
        spaces = list(self._spaces.values()) if space is None else [self._listed(space)]
        return [entry for listed in spaces for entry in listed.entries.values()]

    def pages(self, space: bytes | None = None) -> list[Page]:
        """The same, each for itself."""
        pages: list[Page] = []
        for entry in self.entries(space):
            pages += self.tell_apart(entry) if isinstance(entry, Run) else (entry,)
        return pages

    def tell_apart(self, run: Run) -> list[Page]:
        """Its pages, listed each for itself from now on."""
        if run.pages is not None:
            return run.pages
        listed, pages = self._spaces[run.keys.space], run.tell_apart()
        del listed.entries[listed.ids.get(run.keys.ids[0])]
        listed.put_all(run.keys, pages)
        self._on_apart(run)
        return pages

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

    def entered_dram(self, keys: PageKeys, pages: Sequence[Page]) -> None:
        """Pages and their keys."""
        if self.fresh(keys):
            self._listed(keys.space).put_all(keys, pages)
            self._came_back(keys)
        else:
            for page in pages:
                self._list(page)
        self.journals.stored(keys, Tier.L3)

    def run_entered(self, run: Run) -> None:
        listed = self._listed(run.keys.space)
        (number,) = listed.take(1)
        listed.entries[number] = run
        listed.ids.put_all(run.keys.digests, number, 0)
        self._came_back(run.keys)
        self.journals.stored(run.keys, Tier.L3)

    def left_dram(self, pages: Iterable[Page]) -> None:
        gone = [page for page in pages if self._is_listed(page)]
        self.journals.removed([page.key for page in gone], Tier.L3)
        for page in gone:
            if page.place is None:
                self._unlist(page)

    def run_left(self, run: Run, keys: PageKeys) -> None:
        """Pages that were in a run."""
        self.journals.removed(keys, Tier.L3)
        listed = self._spaces[keys.space]
        if not run.offsets:
            del listed.entries[listed.ids.get(keys.ids[0])]
        listed.ids.drop_all(keys.digests)

    def entered_ssd(self, page: Page, place: SsdPlace) -> None:
        page.place = place
        self._list(page)
        self.journals.stored((page.key,), Tier.L4)

    def left_ssd(self, page: Page) -> None:
        page.place = None
        self.journals.removed((page.key,), Tier.L4)
        if not page.in_dram and self._is_listed(page):
            self._unlist(page)

    def doom(self, page: Page) -> None:
        """Forget a page whose bytes in DRAM are still read by someone."""
        page.doomed = True
        self.journals.removed((page.key,), Tier.L3)
        self._unlist(page)

    def _listed(self, space: bytes) -> _Listed:
        listed = self._spaces.get(space)
        if listed is None:
            listed = self._spaces[space] = _Listed()
        return listed

    def _is_listed(self, page: Page) -> bool:
        return self._listed(space_of(page.key)).get(id_of(page.key)) is page

    def _list(self, page: Page) -> None:
        """Under its number, where it or what it takes the place of has one."""
        listed, number = self._listed(space_of(page.key)), id_of(page.key)
        place = listed.ids.get(number)
        if not place:
            (place,) = listed.take(1)
            listed.ids.put(number, place)
        listed.entries[place] = page
        self._came_back((page.key,))

    def _came_back(self, keys: Iterable[PageKey]) -> None:
        if self._moved:
            for key in keys:
                self._moved.pop(key, None)

    def _unlist(self, page: Page) -> None:
        listed, number = self._listed(space_of(page.key)), id_of(page.key)
        del listed.entries[listed.ids.get(number)]
        listed.ids.drop(number)


def _still_whole(parts: list[Page | Run | None]) -> list[Page | Run | None]:
    """A run that was told apart since it became a part, because a page of it is named once more, is its pages."""
    if Run not in set(map(type, parts)):
        return parts
    return list(chain.from_iterable(part.pages or (part,) if isinstance(part, Run) else (part,) for part in parts))


def _named(entries: Sequence[Page | Run | None], keys: PageKeys) -> Sequence[Page | None]:
    """Pages with these keys, not others with their ids."""
    if set(map(type, entries)) == {Page}:  # as they mostly are
        pages = cast("Sequence[Page]", entries)
        if b"".join([page.key for page in pages]) == keys.joined:
            return pages
    return [entry if isinstance(entry, Page) and entry.key == key else None for entry, key in zip(entries, keys, strict=True)]
