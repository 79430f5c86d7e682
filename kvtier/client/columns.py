"""What is asked and answered about many pages, as columns: which pages go together, and what the agent's columns say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from kvtier.client.channel import AgentRefused, AgentUnavailable
from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.key import DIGEST_BYTES
from kvtier.wire.leased_pages import leased_pages
from kvtier.wire.messages import Acquired, Column, MessageError

# Pages are asked about in chunks, two of them ahead of the copies: the agent looks for the next while one is copied. It is
# an interpreter whose code the copies push out of the caches, so that a request costs it 0.1 ms and a page in it 1 us: chunks
# are large, but for the first, which is waited for, and of puts the last, whose commit is. The larger pages are, the more of
# them the agent can look for while one is copied.
_SMALL_PAGES = 64
_LARGE_PAGES = 768
_LAST_SHARE = 8
_MIN_GROWTH = 3
_GROWTH_BYTES = 24 << 10


def chunks_to_get(pages: int, page_bytes: int) -> list[slice]:
    """Neighbouring pages that are asked about together, growing."""
    sizes: list[int] = []
    size = _SMALL_PAGES
    while pages:
        sizes.append(min(size, pages))
        pages -= sizes[-1]
        size = _grown(size, page_bytes)
    return _slices(sizes)


def chunks_to_put(pages: int, page_bytes: int) -> list[slice]:
    """The same, growing from both ends. The last of few are apart, too: their commit finds an agent that is awake."""
    last = min(pages // _LAST_SHARE, _SMALL_PAGES)
    front: list[int] = []
    back = [last]
    pages -= last
    size = _SMALL_PAGES
    while pages:
        front.append(min(size, pages))
        pages -= front[-1]
        size = _grown(size, page_bytes)
        back.append(min(size, pages) if pages > _LARGE_PAGES else 0)
        pages -= back[-1]
    return _slices([size for size in front + back[::-1] if size])


def _grown(size: int, page_bytes: int) -> int:
    return min(size * max(_MIN_GROWTH, page_bytes // _GROWTH_BYTES), _LARGE_PAGES)


def _slices(sizes: Iterable[int]) -> list[slice]:
    stops = list(accumulate(sizes))
    return list(map(slice, [0, *stops], stops))


def digests_of(digests: bytes, chunk: slice) -> bytes:
    return digests[chunk.start * DIGEST_BYTES : chunk.stop * DIGEST_BYTES]


def found_pages(acquired: Acquired, pages: int, page_bytes: int) -> Sequence[int]:
    """Which of the asked pages are leased. Raises `AgentRefused` where they are stored in other lengths, and
    `AgentUnavailable` for an answer that makes no sense."""
    try:
        found = leased_pages(acquired, pages)
    except MessageError as error:
        raise AgentUnavailable(str(error)) from error
    if acquired.lengths != Column([page_bytes]) * len(found):
        raise AgentRefused(f"pages of {set(acquired.lengths)} bytes are stored in this space, not of {page_bytes}")
    return found


def mark(pages: list[bool], chunk: slice, numbers: Sequence[int]) -> None:
    """That those of a chunk are as they should be."""
    if len(numbers) == chunk.stop - chunk.start:  # all, as they mostly are
        pages[chunk] = [True] * len(numbers)
        return
    for number in numbers:
        pages[chunk.start + number] = True


def differing(checksums: bytes, wanted: bytes) -> set[int]:
    if checksums == wanted:
        return set()
    pairs = (slice(start, start + CHECKSUM_BYTES) for start in range(0, len(wanted), CHECKSUM_BYTES))
    return {number for number, pair in enumerate(pairs) if checksums[pair] != wanted[pair]}


def check_count(found: int, pages: int) -> None:
    if found != pages:
        raise AgentUnavailable(f"an answer about {found} pages to a question about {pages}")
