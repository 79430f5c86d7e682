"""What the shared pool adds to a worker's own leading runs. It knows pages and their holders, no events and no links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel.values import Residency, Run, Tier


class PooledRuns:
    """One prompt's pages with their holders, as the gateway believes them; asked once a worker."""

    def __init__(self, pages: Sequence[int], holder: Mapping[int, str], page_tokens: int) -> None:
        self._pages = pages
        self._holder = holder
        self._page_tokens = page_tokens
        self._known: dict[int, tuple[Run, ...]] = {}  # by the page that they begin with

    def behind(self, held: Residency, prompt_tokens: int) -> Residency:
        """`held` and, contiguous to it, what nodes of the pool hold."""
        start = held.tokens // self._page_tokens
        runs = self._known.get(start)
        if runs is None:
            runs = self._known[start] = self._runs(start, prompt_tokens)
        return Residency((*held.runs, *runs), held.age_ms) if runs else held

    def _runs(self, start: int, prompt_tokens: int) -> tuple[Run, ...]:
        pages, holder, page_tokens = self._pages, self._holder, self._page_tokens
        runs: list[Run] = []
        at = start
        while at < len(pages) and (node := holder.get(pages[at])) is not None:
            first = at
            while at < len(pages) and holder.get(pages[at]) == node:
                at += 1
            tokens = min(at * page_tokens, prompt_tokens) - first * page_tokens
            if tokens > 0:
                runs.append(Run(first * page_tokens, tokens, Tier.L3, node))
        return tuple(runs)
