"""From runs in blocks to a `Residency` in prompt tokens, for block hashes and for message lineages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel.values import Residency, Run
from kvtier.index.match import BlockRun, Match


def to_residency(match: Match, page_size: int, prompt_tokens: int, age_ms: float | None = None) -> Residency:
    """Blocks of `page_size` tokens each. `age_ms` replaces the match's own where the caller knows better."""
    return _residency(match, lambda block: block * page_size, prompt_tokens, age_ms)


def lineage_residency(
    match: Match, cumulative_tokens: Sequence[int], prompt_tokens: int, page_size: int = 1, age_ms: float | None = None
) -> Residency:
    """Messages as blocks: `cumulative_tokens[i]` is the number of tokens up to and with message i.

    Engines cache whole pages, so with a known `page_size` every boundary is rounded down to one.
    """
    page_size = max(1, page_size)

    def start_of(block: int) -> int:
        return cumulative_tokens[block - 1] // page_size * page_size if block else 0

    return _residency(match, start_of, prompt_tokens, age_ms)


def _residency(match: Match, start_of: Callable[[int], int], prompt_tokens: int, age_ms: float | None) -> Residency:
    runs = [run for block_run in match.runs if (run := _run(block_run, start_of, prompt_tokens)).tokens > 0]
    return Residency(tuple(runs), match.age_ms if age_ms is None else age_ms)


def _run(run: BlockRun, start_of: Callable[[int], int], prompt_tokens: int) -> Run:
    start = start_of(run.start)
    end = min(start_of(run.start + run.blocks), prompt_tokens)
    return Run(start, max(0, end - start), run.tier)
