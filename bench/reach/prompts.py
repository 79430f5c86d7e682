"""Prompts as token ids, all different and the same for a seed; and sessions that grow by a turn at a time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

_LOW, _HIGH = 300, 4000  # of the tiny model's 4,096 words: no control tokens


def tokens(rng: Random, count: int) -> list[int]:
    return [rng.randrange(_LOW, _HIGH) for _ in range(count)]


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` tokens that share nothing."""
    rng = Random(seed)
    return [tokens(rng, length) for _ in range(count)]


class Session(msgspec.Struct, frozen=True):
    """The prompts of one agent session: each is a prefix of the next."""

    turns: Sequence[list[int]]


def sessions(count: int, turns: int, common: int, first: int, more: int, seed: int) -> list[Session]:
    """All begin with the same `common` tokens (system prompt and tools), then `first` of their own, then `more` a turn."""
    rng = Random(seed)
    shared = tokens(rng, common)
    made = []
    for _ in range(count):
        prompt = shared + tokens(rng, first)
        grown = [prompt]
        for _ in range(turns - 1):
            prompt = prompt + tokens(rng, more)
            grown.append(prompt)
        made.append(Session(grown))
    return made
