"""What other choices would have brought: at a sampled turn the process is forked, and each copy lives on with another choice.

A copy is the whole truth of that moment: engines, clients, tools, lots. In it the same policy goes on deciding, so that all
that follows from the other choice follows. It ends with its turn and tells how long that took. Needs `os.fork`.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import xxhash

from costmodel.values import Scored

_LOTS = 1 << 64


class HindsightFailed(Exception):
    """A copy ended in an error; its traceback is on stderr."""


class Fate(msgspec.Struct, frozen=True, gc=False):
    """How one turn went after one choice, in ms."""

    ttft_ms: float
    e2e_ms: float


class Regret(msgspec.Struct, frozen=True, gc=False):
    """What the choice that was made lost against the best of all, in ms; 0 where it was the best."""

    ttft_ms: float
    e2e_ms: float


class Hindsight:
    """Tries the others for a `share` of turns. Which ones hangs on turn and `seed` alone, so that policies are asked alike."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._seed = seed
        self._others: dict[str, list[Fate]] = {}  # by turn, while it is under way
        self._told: tuple[str, int] | None = None  # in a copy: its turn, and where to tell of it
        self.regrets: list[Regret] = []

    def wanted(self, name: str) -> bool:
        """Whether the turn of this name is sampled. In a copy none is."""
        if self._told is not None or not self._share:
            return False
        return xxhash.xxh3_64_intdigest(f"{self._seed} hindsight {name}".encode()) < self._share * _LOTS

    def choose(self, rid: str, chosen: Scored, others: Sequence[Scored]) -> Scored:
        """`chosen`; but in each of the copies that are made here, one of `others`. Raises `HindsightFailed`."""
        fates: list[Fate] = []
        for other in others:
            reading, writing = os.pipe()
            copy = os.fork()
            if not copy:
                gc.disable()  # a collection would write to every page that the two processes share
                os.close(reading)
                self._told = (rid, writing)
                return other
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                told = pipe.read()
            if os.waitpid(copy, 0)[1]:
                raise HindsightFailed(f"turn {rid} with {other.prefill.worker_id}>{other.decode.worker_id}: see stderr")
            if told:
                fates.append(msgspec.msgpack.decode(told, type=Fate))
        self._others[rid] = fates
        return chosen

    def ended(self, rid: str, fate: Fate) -> None:
        """A turn has been served. A copy whose turn it is goes no further."""
        if self._told is not None:
            if self._told[0] == rid:
                os.write(self._told[1], msgspec.msgpack.encode(fate))
                os._exit(0)
            return
        others = self._others.pop(rid, None)
        if others is not None:
            best_ttft = min([fate.ttft_ms, *(other.ttft_ms for other in others)])
            best_e2e = min([fate.e2e_ms, *(other.e2e_ms for other in others)])
            self.regrets.append(Regret(fate.ttft_ms - best_ttft, fate.e2e_ms - best_e2e))

    @property
    def in_copy(self) -> bool:
        return self._told is not None

    @contextmanager
    def around(self) -> Iterator[None]:
        """The run. A copy that comes to its end, its turn unserved, or to an error, does not come out of it."""
        try:
            yield
        except BaseException:
            if self._told is None:
                raise
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        if self._told is not None:
            os._exit(0)
