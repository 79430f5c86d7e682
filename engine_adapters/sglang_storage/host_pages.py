"""Where the pages of a call lie in SGLang's host pool."""

from __future__ import annotations

from array import array
from typing import Any

from kvtier.client.engine_pages import EnginePages


def host_pages(pool: Any, host_indices: Any, count: int) -> EnginePages:
    """`count` pages: keys and values apart, or together for MLA.

    `host_indices` holds one index a token. Raises ValueError where the pool's answer does not fit `count` equal pages.
    """
    addresses, lengths = (array("q", map(int, column)) for column in pool.get_page_buffer_meta(host_indices))
    of_page, rest = divmod(len(addresses), count)
    if rest or not of_page or lengths != lengths[:of_page] * count:
        raise ValueError(f"buffers of {sorted(set(lengths))} bytes, {len(addresses)} of them, are not {count} equal pages")
    return EnginePages(addresses, lengths[:of_page])
