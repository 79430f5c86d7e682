"""Where the pages of a call lie in SGLang's host pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtier.client.copier import Piece


def host_pages(pool: Any, host_indices: Any, count: int) -> list[Sequence[Piece]]:
    """The pieces of `count` pages: keys and values apart, or together for MLA.

    `host_indices` holds one index a token. Raises ValueError where the pool's answer does not fit `count` pages.
    """
    addresses, lengths = pool.get_page_buffer_meta(host_indices)
    pieces = [Piece(int(address), int(length)) for address, length in zip(addresses, lengths, strict=True)]
    of_page, rest = divmod(len(pieces), count)
    if rest or not of_page:
        raise ValueError(f"{len(pieces)} buffers are no whole number for each of {count} pages")
    return [pieces[start : start + of_page] for start in range(0, len(pieces), of_page)]
