"""Recorded sessions made small enough for a tiny model on a CPU: tokens and gaps divided by one number, prefixes kept.

A recorded page holds 64 tokens, a scaled prompt's page 16: at 1/32 every eighth recorded page stands for one. Ids are chained,
so that equal ids still mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload

PAGE_TOKENS = 16
_LOW, _HIGH = 300, 4000  # of the tiny model's 4,096 words: no control tokens


class Scale(msgspec.Struct, frozen=True):
    """`divisor` must make whole recorded pages of a page of 16 tokens. Of each session the first `calls` calls of its root."""

    divisor: int = 32
    calls: int = 10
    max_gap_s: float = 60.0  # of the recording: longer breaks are cut to it before they are scaled
    max_prompt_tokens: int = 4096  # scaled
    max_output_tokens: int = 64


def scaled_sessions(recorded: Workload, scale: Scale) -> tuple[SessionPlan, ...]:
    """Sessions with at least two calls that fit. Raises ValueError for a divisor that splits pages."""
    stride, rest = divmod(scale.divisor * PAGE_TOKENS, recorded.page_tokens)
    if rest or stride < 1:
        raise ValueError(f"1/{scale.divisor} makes no whole pages of {recorded.page_tokens} recorded tokens")
    found = []
    for plan in recorded.sessions:
        calls = [_scaled(call, scale, stride) for call in plan.threads[0].calls[: scale.calls]]
        if len(calls) > 1 and max(call.prompt_tokens for call in calls) <= scale.max_prompt_tokens:
            found.append(SessionPlan(plan.name, (ThreadPlan(tuple(calls)),)))
    return tuple(found)


def drawn(sessions: Sequence[SessionPlan], count: int, parts: int, seed: int) -> list[tuple[SessionPlan, ...]]:
    """`parts` disjoint sets of `count` sessions. Raises ValueError when there are too few."""
    if count * parts > len(sessions):
        raise ValueError(f"{parts} sets of {count} sessions need {count * parts}; the trace has {len(sessions)} that fit")
    picked = Random(seed).sample(list(sessions), count * parts)
    return [tuple(picked[part * count : (part + 1) * count]) for part in range(parts)]


def prompt_ids(call: Call, salt: int) -> list[int]:
    """Token ids of a call's prompt: 16 for each page id, the same for the same id and `salt`; the rest is the call's own."""
    ids: list[int] = []
    for page in call.pages():
        rng = Random(f"{salt}/{page}")
        ids += [rng.randrange(_LOW, _HIGH) for _ in range(PAGE_TOKENS)]
    rng = Random(f"{salt}/{call.prompt_tokens}/{call.runs}")
    return ids + [rng.randrange(_LOW, _HIGH) for _ in range(call.prompt_tokens - len(ids))]


def _scaled(call: Call, scale: Scale, stride: int) -> Call:
    prompt = max(1, call.prompt_tokens // scale.divisor)
    pages = call.pages()[stride - 1 :: stride][: prompt // PAGE_TOKENS]
    output = min(max(1, round(call.output_tokens / scale.divisor)), scale.max_output_tokens)
    gap_ms = min(call.gap_ms, scale.max_gap_s * 1000) / scale.divisor
    return Call(prompt, output, tuple(number for page in pages for number in (page, 1)), gap_ms)
