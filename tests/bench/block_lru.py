"""Block-LRU hits of a trace at a given capacity: published figures that the reading of it is checked against."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from bench.simulate.workload import Call


def block_lru_hit(calls: Iterable[Call], capacity_tokens: float, page_tokens: int, *, count_from: int = 0) -> float:
    """Share of prompt tokens of the calls from number `count_from` on that lie in leading pages held then, in arrival order.

    One cache for all; each call's pages become the most recent, deepest first out among them.
    """
    capacity = int(capacity_tokens // page_tokens)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = prompts = 0
    for number, call in enumerate(calls):
        pages = call.pages()
        held = 0
        while held < len(pages) and pages[held] in cache:
            held += 1
        if number >= count_from:
            hits += min(held * page_tokens, call.prompt_tokens)
            prompts += call.prompt_tokens
        for page in reversed(pages):
            cache[page] = None
            cache.move_to_end(page)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / prompts if prompts else 0.0
