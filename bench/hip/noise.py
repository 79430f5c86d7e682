"""Bytes that no two pages share, so that a page in the wrong place is noticed."""

from __future__ import annotations

import random

_PIECE_BYTES = 4 << 20


def fill(memory: memoryview, seed: int) -> None:
    rng = random.Random(seed)
    for start in range(0, len(memory), _PIECE_BYTES):
        piece = memory[start : start + _PIECE_BYTES]
        piece[:] = rng.randbytes(len(piece))
