"""What the shared pool adds to a worker's own leading runs. It knows pages and their holders, no events and no links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from costmodel.values import Residency, Run, Tier

NO_DISKS: Mapping[int, str] = {}


class PooledRuns:
    """One prompt's pages with their holders, as the gateway believes them; asked once a worker."""

    def __init__(
        self,
        pages: Sequence[int],
        holder: Mapping[int, str],
        page_tokens: int,
        disk_of: Mapping[int, str] = NO_DISKS,
        *,
        own_node: bool = False,
    ) -> None:
        """`own_node`: pages of other nodes do not count."""
        self._own_node = own_node
        self._pages = pages
        self._holder = holder
        self._disk_of = disk_of
        self._page_tokens = page_tokens
        self._known: dict[int, tuple[Run, ...]] = {}  # by the page that they begin with

    def behind(self, held: Residency, prompt_tokens: int, node: str = "") -> Residency:
        """`held` and, contiguous to it, what nodes of the pool hold that a worker on `node` can reach."""
        start = held.tokens // self._page_tokens
        runs = self._known.get(start)
        if runs is None:
            runs = self._known[start] = self._runs(start, prompt_tokens)
        if self._own_node:
            runs = tuple(takewhile(lambda run: run.source in (node, ssd_of(node)), runs))
        return Residency((*held.runs, *runs), held.age_ms) if runs else held

    def _runs(self, start: int, prompt_tokens: int) -> tuple[Run, ...]:
        pages, page_tokens = self._pages, self._page_tokens
        runs: list[Run] = []
        at = start
        while at < len(pages) and (place := self._place(pages[at])) is not None:
            first = at
            while at < len(pages) and self._place(pages[at]) == place:
                at += 1
            tokens = min(at * page_tokens, prompt_tokens) - first * page_tokens
            if tokens > 0:
                runs.append(Run(first * page_tokens, tokens, *place))
        return tuple(runs)

    def _place(self, page: int) -> tuple[Tier, str] | None:
        """Nodes by name, their SSDs by `ssd_of` that name: each has a link of its own."""
        node = self._holder.get(page)
        if node is not None:
            return Tier.L3, node
        disk = self._disk_of.get(page)
        return None if disk is None else (Tier.L4, ssd_of(disk))


def ssd_of(node: str) -> str:
    return f"{node} ssd"
