"""The name of one page: its space and the engine's own chained digest of the tokens up to and with it.

A key is one bytes object, because a pool holds a million of them and looks up a thousand a call.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from struct import Struct
from typing import NewType, overload

from kvtier.page.space import SPACE_BYTES

DIGEST_BYTES = 32
KEY_BYTES = SPACE_BYTES + DIGEST_BYTES

PageKey = NewType("PageKey", bytes)

space_of: Callable[[PageKey], bytes] = itemgetter(slice(SPACE_BYTES))
digest_of: Callable[[PageKey], bytes] = itemgetter(slice(SPACE_BYTES, None))

_DIGEST = Struct(f"{DIGEST_BYTES}s")
_ID = Struct("q")
_IDS_A_DIGEST = DIGEST_BYTES // _ID.size


def page_key(space: bytes, digest: bytes) -> PageKey:
    """`space` of SPACE_BYTES, `digest` of DIGEST_BYTES. Raises ValueError for a digest of another length."""
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a page's digest has {DIGEST_BYTES} bytes, not {len(digest)}")
    return PageKey(space + digest)


def id_of(key: PageKey) -> int:
    """The first 8 bytes of its digest, as a number of this machine: no two pages of a space that a node keeps share one."""
    number: int = _ID.unpack_from(key, SPACE_BYTES)[0]
    return number


class PageKeys(Sequence[PageKey]):
    """Keys of one space, as columns: a call names thousands of pages, and objects cost more than what is done to them."""

    __slots__ = ("_distinct_ids", "_ids", "digests", "space")

    def __init__(self, space: bytes, digests: bytes) -> None:
        """One key for every DIGEST_BYTES of `digests`. Raises ValueError for a broken length."""
        if len(digests) % DIGEST_BYTES:
            raise ValueError(f"digests come in {DIGEST_BYTES} bytes each, {len(digests)} is no multiple of it")
        self.space = space
        self.digests = digests
        self._ids: array[int] | None = None
        self._distinct_ids: frozenset[int] | None = None

    @classmethod
    def of(cls, keys: Sequence[PageKey]) -> PageKeys:
        """The same keys. Raises ValueError for those of several spaces."""
        if isinstance(keys, PageKeys):
            return keys
        spaces = set(map(space_of, keys))
        if len(spaces) > 1:
            raise ValueError("pages of several spaces are named apart")
        return cls(spaces.pop() if spaces else b"", b"".join(map(digest_of, keys)))

    @property
    def ids(self) -> array[int]:
        """`id_of` each."""
        if self._ids is None:
            self._ids = array("q", self.digests)[::_IDS_A_DIGEST]
        return self._ids

    @property
    def distinct_ids(self) -> frozenset[int]:
        if self._distinct_ids is None:
            self._distinct_ids = frozenset(self.ids)
        return self._distinct_ids

    @property
    def joined(self) -> bytes:
        """The keys, KEY_BYTES each."""
        return self.space.join([b"", *self.each_digest()])

    def each_digest(self) -> list[bytes]:
        return [digest for (digest,) in _DIGEST.iter_unpack(self.digests)]

    def names_at(self, index: int, others: PageKeys) -> bool:
        """Whether `others` stand here, as a whole, from `index` on. Of the same space."""
        return self.digests.startswith(others.digests, index * DIGEST_BYTES)

    def __len__(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    def __iter__(self) -> Iterator[PageKey]:
        space = self.space
        return iter([PageKey(space + digest) for digest in self.each_digest()])

    @overload
    def __getitem__(self, index: int) -> PageKey: ...
    @overload
    def __getitem__(self, index: slice) -> PageKeys: ...
    def __getitem__(self, index: int | slice) -> PageKey | PageKeys:
        if isinstance(index, int):
            start = DIGEST_BYTES * range(len(self))[index]
            return PageKey(self.space + self.digests[start : start + DIGEST_BYTES])
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError("only neighbouring keys are taken together")
        return PageKeys(self.space, self.digests[DIGEST_BYTES * start : DIGEST_BYTES * stop])


def join_digests(hex_digests: Iterable[str]) -> bytes:
    """From an engine's hex spelling. Raises ValueError for one that is no SHA-256."""
    digests = [bytes.fromhex(text) for text in hex_digests]
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"page digests are {DIGEST_BYTES} bytes in hex, one of {len(digests)} is not")
    return b"".join(digests)
