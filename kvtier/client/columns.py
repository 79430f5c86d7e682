"""What is asked and answered about many pages, as columns: which pages go together, and what the agent's columns say."""

from __future__ import annotations

from collections.abc import Sequence

from kvtier.client.channel import AgentRefused, AgentUnavailable
from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.key import DIGEST_BYTES
from kvtier.wire.leased_pages import leased_pages
from kvtier.wire.messages import Acquired, Column, MessageError

# Pages are asked about in chunks, two of them ahead of the copies. A request costs the agent, an interpreter whose code the
# copies push out of the caches, 0.1 ms, and a page in it next to nothing, so that chunks are large. What bounds them is what
# the agent and its socket do at once, and what is waited for where pages have yet to come from SSD.
_CHUNK_PAGES = 2048
_CHUNK_BYTES = 256 << 20


def chunks_of(pages: int, page_bytes: int) -> list[slice]:
    """Neighbouring pages that are asked about together."""
    size = max(1, min(_CHUNK_PAGES, _CHUNK_BYTES // page_bytes))
    return [slice(start, min(start + size, pages)) for start in range(0, pages, size)]


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
