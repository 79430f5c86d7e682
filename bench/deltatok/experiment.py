"""Measures what one more turn of a long conversation costs, beside tokenising all of it, on one core.

CPU time is the whole process's, so that a tokenizer's own threads count, and the process keeps to one core.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.deltatok.dialects import DialectRow, measure_dialects
from bench.deltatok.loop import LoopRow, measure_loop
from bench.deltatok.memory import MemoryRow, measure_memory
from bench.deltatok.talk import Talk, library_text
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.verify import verify
from kvtier.hashing.sglang import Chain

T = TypeVar("T")
Tell = Callable[[str], None]

PAGE_TOKENS = 64
_LIBRARY_CHARS = 8_000_000
_CONTEXT_CHARS = 4_000_000
_MORE_CHARS = 310_000  # some 100,000 tokens
_LOOP_S = 3.0
_TURN_CHARS = 2_400
_CHAIN_TOKENS = 200_000
_REPEATS = 5


class WrongPrompt(Exception):
    """A delta did not give the ids of the whole prompt: nothing that was measured counts."""


class Row(msgspec.Struct, frozen=True):
    """`delta_cpu_ms`: median of one turn, from the body's bytes to its block ids. `full_cpu_ms`: the tokenizer alone on the
    whole rendered prompt. `cold_cpu_ms`: from the body's bytes to block ids with nothing known."""

    context_tokens: int
    new_tokens: int
    delta_cpu_ms: float
    full_cpu_ms: float
    cold_cpu_ms: float


class Outcome(msgspec.Struct, frozen=True):
    rows: list[Row]
    chain_200k_ms: float
    slope_ms_per_100k: float  # of delta_cpu_ms over context
    dialects: list[DialectRow] = []
    memory: list[MemoryRow] = []
    loop: list[LoopRow] = []


def run_experiment(
    folder: Path, contexts: Sequence[int], new_tokens: int, turns: int, tell: Tell, *, fast: bool = False, more: bool = False
) -> Outcome:
    """Raises ValueError for a folder that is no model's, WrongPrompt when a result is not right.

    `more`: also the other protocols, memory and the event loop's waiting; the last on all cores.
    """
    model = PromptModel.open(folder, SglangProfile(), fast=fast)
    with _one_core():
        outcome = _run(model, contexts, new_tokens, turns, tell)
        if not more:
            return outcome
        dialects = [row for chars in (_MORE_CHARS, 8 * _MORE_CHARS) for row in measure_dialects(model, chars, turns)]
        memory = measure_memory(model, _MORE_CHARS)
    loop = measure_loop(model, _MORE_CHARS, _LOOP_S)
    return msgspec.structs.replace(outcome, dialects=dialects, memory=memory, loop=loop)


def _run(model: PromptModel, contexts: Sequence[int], new_tokens: int, turns: int, tell: Tell) -> Outcome:
    text = library_text(_LIBRARY_CHARS)
    fresh = _Fresh(text[_CONTEXT_CHARS:] or text)
    rows: list[Row] = []
    for context in contexts:
        row = _measure(model, Talk(text[:_CONTEXT_CHARS]), context, new_tokens, turns, fresh)
        rows.append(row)
        tell(f"{row.context_tokens:>9,} tokens  +{row.new_tokens}: {row.delta_cpu_ms:.2f} ms; whole {row.full_cpu_ms:.1f} ms")
    tokens = array("I", range(_CHAIN_TOKENS))
    chain_ms = min(_timed(lambda: Chain(PAGE_TOKENS).extend(tokens))[1] for _ in range(_REPEATS))
    return Outcome(rows, chain_ms, slope_per_100k([(row.context_tokens, row.delta_cpu_ms) for row in rows]))


@contextmanager
def _one_core() -> Iterator[None]:
    """A system without affinity measures all the same."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(before)})
    except (OSError, AttributeError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class _Fresh:
    """Text that nothing was said of before: a tokenizer that remembers words has no advantage."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def take(self, chars: int) -> str:
        if self._at + chars > len(self._text):
            self._at = 0
        self._at += chars
        return self._text[self._at - chars : self._at]


def slope_per_100k(points: Sequence[tuple[int, float]]) -> float:
    """Of the straight line that fits best; 0 for a single point."""
    if len({tokens for tokens, _ in points}) < 2:
        return 0.0
    slope, _ = statistics.linear_regression([tokens / 100_000 for tokens, _ in points], [ms for _, ms in points])
    return slope


def _measure(model: PromptModel, talk: Talk, context: int, new_tokens: int, turns: int, fresh: _Fresh) -> Row:
    """Each turn is the next one of the same prompt, so that the context stays what it is."""
    root = Chain(PAGE_TOKENS)
    chars_per_token = _grow(model, talk, context)
    body = talk.body()
    gc.collect()
    state, cold_ms = _timed(lambda: model.extend(None, body, root))
    rendered = model.render(model.parse(body))
    full_ms = min(_timed(lambda: model.encode(rendered))[1] for _ in range(2))
    costs: list[float] = []
    gained: list[int] = []
    for _ in range(turns):
        further = talk.turn(fresh.take(round(new_tokens * chars_per_token)))
        body = talk.body(*further)
        later, ms = _timed(lambda body=body: model.extend(state, body, root))  # type: ignore[misc]
        costs.append(ms)
        gained.append(later.tokens - state.tokens)
    verdict = verify(later, model, body)
    if not verdict.right:
        raise WrongPrompt(f"at {verdict.tokens} tokens the delta is wrong from token {verdict.differs_at} on")
    return Row(state.tokens, round(statistics.median(gained)), statistics.median(costs), full_ms, cold_ms)


def _grow(model: PromptModel, talk: Talk, context: int) -> float:
    """Until the prompt has about `context` tokens. Returns characters per token of what was added."""
    empty = model.extend(None, talk.body(), Chain(PAGE_TOKENS)).tokens
    start = talk.chars
    talk.grow(_TURN_CHARS)
    for share in (0.1, 0.5, 0.98):
        tokens = model.extend(None, talk.body(), Chain(PAGE_TOKENS)).tokens
        chars_per_token = (talk.chars - start) / (tokens - empty)
        while (talk.chars - start) / chars_per_token < (context - empty) * share:
            talk.grow(_TURN_CHARS)
    return chars_per_token


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` gives, and its CPU time in ms."""
    start = time.process_time()
    found = work()
    return found, (time.process_time() - start) * 1000
