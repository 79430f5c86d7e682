"""Which prefill workers a workload leaves to choose from: all, unless it drains workers or moves sessions by force."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from bench.simulate.clients import Ask
from bench.simulate.settings import Settings
from costmodel.values import WorkerKey

_LOTS = 1 << 64


class Allowance:
    """`workers` that prefill; they may be lost and join."""

    def __init__(self, workers: Sequence[WorkerKey], settings: Settings, seed: int) -> None:
        self._workers = list(workers)
        self._settings = settings
        self._seed = seed
        self._pins: dict[str, tuple[int, int]] = {}

    def joined(self, worker: WorkerKey) -> None:
        self._workers.append(worker)

    def lost(self, worker: WorkerKey) -> None:
        if worker in self._workers:
            self._workers.remove(worker)

    def of(self, ask: Ask, before: WorkerKey | None) -> tuple[frozenset[WorkerKey] | None, bool]:
        """The workers allowed (None: all), and whether the thread, last on `before`, has just been moved by force."""
        if self._settings.pin_grow_tokens:
            return self._pinned(ask)
        if before is not None and before not in self._workers:
            return None, True
        share = self._settings.drain_share
        if not share or before is None or len(self._workers) < 2:
            return None, False
        lot = xxhash.xxh3_64_intdigest(f"{self._seed} {ask.thread_id} {ask.index}".encode()) / _LOTS
        if lot >= share:
            return None, False
        return frozenset(self._workers) - {before}, True

    def _pinned(self, ask: Ask) -> tuple[frozenset[WorkerKey], bool]:
        """The seed's forced migration: a pin that moves on at a resume once the context has grown enough."""
        name, tokens = ask.session.plan.name, ask.call.prompt_tokens
        pin, pinned_tokens = self._pins.setdefault(name, (0, tokens))
        moved = ask.rotated and tokens - pinned_tokens >= self._settings.pin_grow_tokens
        if moved:
            pin += 1
            self._pins[name] = (pin, tokens)
        return frozenset((self._workers[pin % len(self._workers)],)), moved
