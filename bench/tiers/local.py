"""Pages of engines on the same host: put and get through shared memory, beside a flat copy of as many bytes, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.tiers.buffers import Buffer
from kvtier.client.copier import Copier
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.copy.base import Move
from kvtier.copy.native import best_copies
from kvtier.page.space import PageSpace

ROUND_BYTES = 128 << 20
PAGE_BYTES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
_THREADS = 2
_WARM_S = 10.0
_PATIENT = ClientSettings(connect_s=5, look_s=5, get_s=30, put_s=30, lease_s=30)


class Spent(NamedTuple):
    """Of this process: what the agent spends beside it is `bench.tiers.control`."""

    wall_s: float
    cpu_s: float


class LocalRatios(msgspec.Struct, frozen=True):
    """Rates of put and get over the flat copy's, medians of rounds; and by CPU time, which a busy machine changes less."""

    put: float
    get: float
    put_by_cpu: float
    get_by_cpu: float
    flat_gb_per_s: float

    @property
    def lower(self) -> float:
        return min(self.put, self.get)

    @property
    def lower_by_cpu(self) -> float:
        return min(self.put_by_cpu, self.get_by_cpu)


class WrongPages(Exception):
    """Not every page was stored or restored."""


def local_ratios(socket: Path, copier: Copier, page_bytes: int, rounds: int, seed: int) -> LocalRatios:
    """With an agent whose pool holds at least four times ROUND_BYTES. Raises `WrongPages`."""
    source, target, other = Buffer(ROUND_BYTES), Buffer(ROUND_BYTES), Buffer(ROUND_BYTES)
    full, empty = source.pages(page_bytes), target.pages(page_bytes)
    client = PageClient(socket, PageSpace("bench", "bytes", "flat", page_bytes), copier, _PATIENT)
    flat_copies = best_copies(_THREADS)
    rounds_spent: list[tuple[Spent, Spent, Spent]] = []
    try:
        if not client.warm(_WARM_S):
            what = f"the memory of the agent was not mapped within {_WARM_S:g} s"
            raise WrongPages(f"{what}: ask again on a quieter machine, with 2 GB free")
        for number in range(rounds + 1):
            source.mark(page_bytes, seed + number)
            digests = b"".join(sha256(f"{seed}/{number}/{page}".encode()).digest() for page in range(ROUND_BYTES // page_bytes))
            flat_spent = _spent(lambda: flat_copies.move([Move(other.address, source.address, ROUND_BYTES)]))
            put_spent = _spent(lambda: _all(client.put(digests, full)))  # noqa: B023 - called at once
            get_spent = _spent(lambda: _all(client.get(digests, empty)))  # noqa: B023 - called at once
            rounds_spent.append((flat_spent, put_spent, get_spent))
        client.clear()  # pages of one length at a time, as a node has them
    finally:
        client.close()
    kept = rounds_spent[1:]  # the first is there to warm up
    return LocalRatios(
        put=median(flat.wall_s / put.wall_s for flat, put, _ in kept),
        get=median(flat.wall_s / get.wall_s for flat, _, get in kept),
        put_by_cpu=median(flat.cpu_s / put.cpu_s for flat, put, _ in kept),
        get_by_cpu=median(flat.cpu_s / get.cpu_s for flat, _, get in kept),
        flat_gb_per_s=median(ROUND_BYTES / flat.wall_s / 1e9 for flat, _, _ in kept),
    )


def _all(done: list[bool]) -> None:
    if not all(done):
        raise WrongPages(f"{done.count(False)} of {len(done)} pages failed")


def _spent(work: Callable[[], object]) -> Spent:
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - started_s, time.process_time() - started_cpu_s)
