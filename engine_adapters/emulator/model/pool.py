"""A pool shared by nodes behind one engine's host tier (L3), as that engine uses it. Where pages lie is the pool's matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine_adapters.emulator.model.request import Namespace

Done = Callable[[int, float], None]  # how many leading pages have come, and when


class Reading(NamedTuple):
    """A read whose end is known when it begins: `pages` leading ones, the last of them at `done_ms`."""

    pages: int
    done_ms: float


class Pool(Protocol):
    """Pages by their chained hashes within a namespace. All calls bring the time; none waits."""

    def read(self, hashes: Sequence[int], namespace: Namespace, least: int, now_ms: float, done: Done) -> Reading | None:
        """Begin to copy the leading ones of `hashes` that it holds into this engine's host tier; none if fewer than `least`.

        None where the end is not known yet: then `done` is called later, once, also where there was nothing.
        """
        ...

    def write(self, hashes: Sequence[int], namespace: Namespace, depth: int, now_ms: float) -> None:
        """The engine has written these pages, `depth` pages into their prompts, through to its host tier and offers them."""
        ...
