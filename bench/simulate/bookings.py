"""What one worker has been sent to compute, in milliseconds as predicted when it was placed.

A virtual finish time: each booking lengthens it, time works it off, and when nothing is open any more the worker is free.
Work that does not end in its time is not thought to be ahead of the next turn: such a turn waits for something else, mostly
for decode room.
"""

from __future__ import annotations


class Bookings:
    """`turn`s are unique among the open ones."""

    __slots__ = ("_free_ms", "_open")

    def __init__(self) -> None:
        self._free_ms = 0.0
        self._open: set[int] = set()

    def book(self, turn: int, compute_ms: float, now_ms: float) -> None:
        self._open.add(turn)
        self._free_ms = max(self._free_ms, now_ms) + compute_ms

    def settle(self, turn: int, now_ms: float) -> None:
        """The turn's prefill is over. Settling twice is harmless."""
        self._open.discard(turn)
        if not self._open:
            self._free_ms = now_ms

    def queued_ms(self, now_ms: float) -> float:
        return max(0.0, self._free_ms - now_ms)
