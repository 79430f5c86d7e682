"""Calls of known shape on an idle server: what prefill costs by new and cached tokens, and a step of decode by its batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import product

import msgspec

from bench.simulate.workload import Call
from bench.validate.real_server import RealServer
from bench.validate.scaled import PAGE_TOKENS
from bench.validate.timed import Timed

_APART_MS = 1_000_000.0  # between two probes in virtual time: nothing is left of the one before
_REPLY_TOKENS = 24


class Grid(msgspec.Struct, frozen=True):
    """Tokens; `batches` are replies at once."""

    cached: tuple[int, ...] = (0, 1024, 2048, 3072)
    new: tuple[int, ...] = (16, 64, 256, 1024)
    batches: tuple[int, ...] = (1, 2, 4)
    contexts: tuple[int, ...] = (512, 1024, 3072)  # of those replies
    repeats: int = 2


async def probe(server: RealServer, grid: Grid, salt: int) -> list[Timed]:
    """Each batch of probes far from the one before. Raises `ReplayFailed` and `httpx.HTTPError`."""
    timed: list[Timed] = []
    for number, calls in enumerate(batches_of(grid)):
        timed += await _at_once(server, calls, number, salt)
    return timed


def batches_of(grid: Grid) -> list[list[Call]]:
    """What is sent at once, in order: a prompt and, behind it, longer ones that begin with it; then replies side by side."""
    found: list[list[Call]] = []
    for cached in grid.cached * grid.repeats:
        base = _pages(len(found), cached)
        if cached:
            found.append([Call(cached + 1, 1, base)])
        found += [[Call(cached + new, 2, base + _pages(len(found), new, 1 + index))] for index, new in enumerate(grid.new)]
    for batch, context in list(product(grid.batches, grid.contexts)) * grid.repeats:
        found.append([Call(context, _REPLY_TOKENS, _pages(len(found), context, each)) for each in range(batch)])
    return found


async def _at_once(server: RealServer, calls: Sequence[Call], number: int, salt: int) -> list[Timed]:
    origin_s = time.monotonic()

    async def one(index: int, call: Call) -> Timed:
        sent_ms = number * _APART_MS + 1000 * (time.monotonic() - origin_s)
        ttft_ms, e2e_ms, cached = await server.complete(call, salt)
        return Timed(f"probe{number}", index, call, sent_ms, ttft_ms, e2e_ms, cached)

    return await asyncio.gather(*(one(index, call) for index, call in enumerate(calls)))


def _pages(batch: int, tokens: int, call: int = 0) -> tuple[int, ...]:
    """Ids that no other batch and no other call has."""
    return (((batch + 1) << 24) + (call << 16), tokens // PAGE_TOKENS) if tokens >= PAGE_TOKENS else ()
