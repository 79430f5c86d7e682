"""From runs in blocks to a `Residency` in prompt tokens, for block hashes and for message lineages."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.values import Residency, Run, Tier
from kvtier.index.runs import BlockRun, Match

_L1 = Tier.L1


def to_residency(match: Match, page_size: int, prompt_tokens: int) -> Residency:
    """Blocks of `page_size` tokens each."""
    runs = [run for block_run in match.runs if (run := _run(block_run, page_size, prompt_tokens)).tokens > 0]
    return Residency(tuple(runs), match.age_ms)


def lineage_runs(positions: int, cumulative_tokens: Sequence[int], page_size: int) -> tuple[Run, ...]:
    """Messages as blocks: the leading `positions` are held; `cumulative_tokens[i]` is the number of tokens up to and with i.

    Engines cache whole pages, so the end is rounded down to one. A page size of 0 or 1 means no pages.
    """
    tokens = cumulative_tokens[positions - 1]
    if page_size > 1:
        tokens -= tokens % page_size
    return (Run(0, tokens, _L1),) if tokens > 0 else ()


def _run(run: BlockRun, page_size: int, prompt_tokens: int) -> Run:
    start = run.start * page_size
    end = min(start + run.blocks * page_size, prompt_tokens)
    return Run(start, max(0, end - start), run.tier, run.source)
