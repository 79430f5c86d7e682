"""How long an event loop waits for the interpreter while other threads derive prompts, at two switch intervals of CPython.

The loop does nothing but wake up, so that whatever it is late by was another's: the tokenizer thread's, or this machine's.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from bench.deltatok.talk import Talk, library_text
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.verify import verify
from kvtier.hashing.sglang import Chain

CPYTHON_SWITCH_MS = 5.0
GATEWAY_SWITCH_MS = 0.5
_PAGE_TOKENS = 64
_TICK_S = 0.0005
_TURN_CHARS = 2_400
_HOLD_RUNS = 5
_RELEASING = frozenset({"encode_batch", "encode_batch_fast"})  # calls that let other threads run


class LoopRow(msgspec.Struct, frozen=True):
    """Lateness of a loop's timers while a thread does `work`: nothing, deltas without a pause, or whole tokenisations.

    `longest_hold_ms`: the most CPU time that the work spends between two events of the interpreter, which bounds how long one
    call keeps other threads from it. Other programs' turns on this machine are in the figures before, not in this one.
    """

    work: str
    switch_ms: float
    late_p50_ms: float
    late_p99_ms: float
    late_worst_ms: float
    longest_hold_ms: float


def measure_loop(model: PromptModel, context_chars: int, seconds: float) -> list[LoopRow]:
    """`context_chars`: of the conversation whose prompts are derived."""
    talk = Talk(library_text(2 * context_chars))
    while talk.chars < context_chars:
        talk.grow(_TURN_CHARS)
    bodies = [talk.body(*talk.turn(f"output {number}\n" * 150)) for number in range(8)]
    root = Chain(_PAGE_TOKENS)
    state = model.extend(None, talk.body(), root)
    first = model.extend(state, bodies[0], root)
    works: dict[str, Callable[[int], object]] = {
        "nothing": lambda _: time.sleep(0.01),
        "deltas": lambda number: model.extend(state, bodies[number % len(bodies)], root),
        "whole": lambda _: verify(first, model, bodies[0]),
    }
    holds = {name: longest_hold_ms(work) for name, work in works.items()}
    return [
        _row(name, switch_ms, _lateness(work, switch_ms, seconds), holds[name])
        for switch_ms in (CPYTHON_SWITCH_MS, GATEWAY_SWITCH_MS)
        for name, work in works.items()
    ]


def longest_hold_ms(work: Callable[[int], object]) -> float:
    """Of several runs the least, since a page fault or another program's turn counts as well."""
    return min(_hold_ms(work) for _ in range(_HOLD_RUNS))


def _hold_ms(work: Callable[[int], object]) -> float:
    last_s = longest_s = 0.0
    clock = time.thread_time

    def on_event(frame: FrameType, event: str, called: object) -> None:
        nonlocal last_s, longest_s
        now_s = clock()
        if not (event == "c_return" and getattr(called, "__name__", "") in _RELEASING):
            longest_s = max(longest_s, now_s - last_s)
        last_s = clock()

    last_s = clock()
    sys.setprofile(on_event)
    try:
        work(0)
    finally:
        sys.setprofile(None)
    return longest_s * 1000


def _row(name: str, switch_ms: float, late_ms: list[float], hold_ms: float) -> LoopRow:
    cuts = statistics.quantiles(late_ms, n=100)
    return LoopRow(name, switch_ms, cuts[49], cuts[98], max(late_ms), hold_ms)


def _lateness(work: Callable[[int], object], switch_ms: float, seconds: float) -> list[float]:
    """In ms, one a tick. A selector without whole milliseconds, so that an idle loop is hardly late at all."""
    with _switching(switch_ms), _worker(work):
        loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        try:
            return loop.run_until_complete(_tick(seconds))
        finally:
            loop.close()


async def _tick(seconds: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await asyncio.sleep(_TICK_S)
        found.append((time.perf_counter() - begun - _TICK_S) * 1000)
    return found


@contextmanager
def _switching(switch_ms: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_ms / 1000)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


@contextmanager
def _worker(work: Callable[[int], object]) -> Iterator[None]:
    """A thread that does `work` again and again."""
    over = threading.Event()

    def run() -> None:
        number = 0
        while not over.is_set():
            work(number)
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
