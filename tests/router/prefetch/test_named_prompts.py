"""Prompts that clients named: bounded in bytes by what runs, and found in the turns that begin with them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvtier.page.key import DIGEST_BYTES
from router.errors import QueueFull
from router.prefetch.named_prompts import Named, NamedPrompts

POOL: Any = None  # nothing here asks it


def named(*blocks: int, digest_bytes: int | None = None) -> Named:
    size = DIGEST_BYTES * len(blocks) if digest_bytes is None else digest_bytes
    return Named(POOL, bytes(size), array("q", blocks), 16)


def runs(_: str) -> bool:
    return True


def test_turns_are_led_by_what_they_begin_with_the_longest_first() -> None:
    prompts = NamedPrompts()
    short, other, long = (prompts.add(named(*blocks), runs) for blocks in ((1, 2), (1, 9), (1, 2, 3)))
    assert prompts.leading(array("q", [1, 2, 3, 4])) == [long, short]
    assert prompts.leading(array("q", [1, 9])) == [other]
    assert prompts.leading(array("q", [1])) == []
    assert prompts.leading(array("q")) == []


def test_what_runs_is_kept_and_what_has_ended_makes_room() -> None:
    prompts = NamedPrompts()
    large = named(1, digest_bytes=40 << 20)
    first = prompts.add(large, runs)
    with pytest.raises(QueueFull):
        prompts.add(large, runs)
    assert prompts.get(first) is large
    second = prompts.add(large, lambda subject: subject != first)
    assert (prompts.get(first), prompts.get(second)) == (None, large)
