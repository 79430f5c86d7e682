"""Numbers by page id: what the catalogue looks pages up in, a native table where loadback-hip is installed, else a dictionary.

Every call of an engine names thousands of digests; one by one, in Python and with cold caches, looking each up takes as long as
copying it. Batches are joined digests; a page's id is the first 8 bytes of its own (`kvtier.page.key.id_of`).
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import count, repeat
from typing import Protocol

from kvtier.copy.native import native_module
from kvtier.page.key import DIGEST_BYTES

log = logging.getLogger(__name__)

_ID_BYTES = 8


class PageIds(Protocol):
    """Numbers are above 0. ValueError for digests of a broken length."""

    def __len__(self) -> int: ...

    def get(self, id: int) -> int:
        """0 where it is not there."""
        ...

    def put(self, id: int, number: int) -> None: ...

    def drop(self, id: int) -> bool:
        """Whether it was there."""
        ...

    def fresh(self, digests: bytes) -> bool:
        """Whether the ids are all different, and none of them is there."""
        ...

    def get_all(self, digests: bytes) -> Sequence[int]: ...

    def put_all(self, digests: bytes, first: int, step: int) -> None:
        """The i-th gets `first + i * step`."""
        ...

    def drop_all(self, digests: bytes) -> None:
        """Those that are there."""
        ...


def make_ids() -> PageIds:
    """Native where loadback-hip is installed and has the table. One built before it had is said to be old."""
    module = native_module()
    if module is None:
        return PortableIds()
    table = getattr(module, "IdTable", None)
    if table is None:
        log.warning("loadback-hip is older than this agent and has no IdTable: pages are looked up in Python; build it anew")
        return PortableIds()
    ids: PageIds = table()
    return ids


class PortableIds:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def get(self, id: int) -> int:
        return self._numbers.get(id, 0)

    def put(self, id: int, number: int) -> None:
        self._numbers[id] = _positive(number)

    def drop(self, id: int) -> bool:
        return self._numbers.pop(id, 0) > 0

    def fresh(self, digests: bytes) -> bool:
        ids = ids_of(digests)
        different = set(ids)
        return len(different) == len(ids) and self._numbers.keys().isdisjoint(different)

    def get_all(self, digests: bytes) -> Sequence[int]:
        return list(map(self._numbers.get, ids_of(digests), repeat(0)))

    def put_all(self, digests: bytes, first: int, step: int) -> None:
        if step < 0:
            raise ValueError("numbers are above 0")
        self._numbers.update(zip(ids_of(digests), count(_positive(first), step), strict=False))

    def drop_all(self, digests: bytes) -> None:
        deque(map(self._numbers.pop, ids_of(digests), repeat(0)), maxlen=0)


def ids_of(digests: bytes) -> array[int]:
    """Raises ValueError for a broken length."""
    if len(digests) % DIGEST_BYTES:
        raise ValueError(f"digests come in {DIGEST_BYTES} bytes each, {len(digests)} is no multiple of it")
    return array("q", digests)[:: DIGEST_BYTES // _ID_BYTES]


def _positive(number: int) -> int:
    if number < 1:
        raise ValueError("numbers are above 0")
    return number
