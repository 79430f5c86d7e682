"""What threads weigh in a `PromptCache`, with exact ids and with digests alone."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence

import msgspec

from bench.deltatok.talk import Talk, library_text
from engine_adapters.prompt.cache import PromptCache
from engine_adapters.prompt.model import PromptModel
from kvtier.hashing.sglang import Chain

FLEET_THREADS = 2_000
FLEET_TOKENS = 100_000
_PAGE_TOKENS = 64
_THREADS = 6
_TURNS = 20
_TURN_CHARS = 2_400


class MemoryRow(msgspec.Struct, frozen=True):
    """`bytes_per_thread`: as allocated, at 100,000 tokens; `counted_share`: what the cache counts of it."""

    exact_ids: bool
    bytes_per_thread: float
    fleet_bytes: float  # of 2,000 such threads
    counted_share: float


def measure_memory(model: PromptModel, context_chars: int) -> list[MemoryRow]:
    """Threads with nothing in common, each grown over many turns to `context_chars` characters."""
    text = library_text(context_chars * (_THREADS + 1))
    return [_measure(model, text, context_chars, exact_ids=exact_ids) for exact_ids in (True, False)]


def _measure(model: PromptModel, text: str, context_chars: int, *, exact_ids: bool) -> MemoryRow:
    cache = PromptCache(model, 1 << 40, keep_ids=exact_ids)
    histories = [_history(text[number * context_chars :], context_chars) for number in range(_THREADS)]
    cache.extend("warm", histories[0][0], Chain(_PAGE_TOKENS))
    gc.collect()
    tracemalloc.start()
    before, counted_before, tokens = tracemalloc.get_traced_memory()[0], cache.used_bytes, 0
    for number, bodies in enumerate(histories):
        for body in bodies:
            state = cache.extend(f"t{number}", body, Chain(_PAGE_TOKENS))
        tokens += state.tokens
    gc.collect()
    used, counted = tracemalloc.get_traced_memory()[0] - before, cache.used_bytes - counted_before
    tracemalloc.stop()
    per_thread = used / (tokens / FLEET_TOKENS)
    return MemoryRow(exact_ids, per_thread, per_thread * FLEET_THREADS, counted / used)


def _history(text: str, context_chars: int) -> Sequence[bytes]:
    """Bodies of a thread as it grows, the last one whole."""
    talk = Talk(text)
    bodies: list[bytes] = []
    while talk.chars < context_chars:
        if talk.chars >= context_chars * len(bodies) / _TURNS:
            bodies.append(talk.body())
        talk.grow(_TURN_CHARS)
    return [*bodies, talk.body()]
