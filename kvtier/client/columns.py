"""What is asked and answered about many pages, as columns: which pages go together, and what the agent's columns say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtier.client.channel import AgentRefused, AgentUnavailable
from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.status import Status
from kvtier.wire.messages import Acquired

# Pages are asked about in chunks, of which the agent is told some before the first is copied: it looks for the next ones
# meanwhile, and a request on its way wakes nobody in the middle of a copy.
_CHUNK_PAGES = 256
_FIRST_CHUNK_PAGES = 32
_WINDOW_CHUNKS = 12  # what sockets hold with ease


def windows(pages: int) -> Iterator[list[slice]]:
    """Neighbouring pages that are asked about together. The first are few, so that copying begins early."""
    start = 0
    while start < pages:
        sizes = (_FIRST_CHUNK_PAGES, *[_CHUNK_PAGES] * (_WINDOW_CHUNKS - 1))
        window = []
        for size in sizes:
            stop = min(start + size, pages)
            if stop > start:
                window.append(slice(start, stop))
            start = stop
        yield window


def digests_of(digests: bytes, chunk: slice) -> bytes:
    return digests[chunk.start * DIGEST_BYTES : chunk.stop * DIGEST_BYTES]


def found_pages(acquired: Acquired, pages: int, page_bytes: int) -> Sequence[int]:
    """Which of the asked pages are leased. Raises `AgentRefused` where they are stored in other lengths."""
    check_count(len(acquired.statuses), pages)
    found = numbers_ok(acquired.statuses)
    for column in (len(acquired.offsets), len(acquired.generations), len(acquired.checksums) // CHECKSUM_BYTES):
        check_count(column, len(found))
    if acquired.lengths != [page_bytes] * len(found):
        raise AgentRefused(f"pages of {set(acquired.lengths)} bytes are stored in this space, not of {page_bytes}")
    return found


def numbers_ok(statuses: bytes) -> Sequence[int]:
    if not any(statuses):  # all OK, as they mostly are
        return range(len(statuses))
    return [number for number, status in enumerate(statuses) if status == Status.OK]


def differing(checksums: bytes, wanted: bytes) -> set[int]:
    if checksums == wanted:
        return set()
    pairs = (slice(start, start + CHECKSUM_BYTES) for start in range(0, len(wanted), CHECKSUM_BYTES))
    return {number for number, pair in enumerate(pairs) if checksums[pair] != wanted[pair]}


def check_count(found: int, pages: int) -> None:
    if found != pages:
        raise AgentUnavailable(f"an answer about {found} pages to a question about {pages}")
