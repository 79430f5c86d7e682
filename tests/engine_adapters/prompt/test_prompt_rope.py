"""A rope behaves as the list of its rows, whatever is shared, split and cut off; and sharing costs nothing."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from engine_adapters.prompt.rope import Chunk, Rope

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 31)), max_size=12)


class Ropes(RuleBasedStateMachine):
    made = Bundle("made")

    @rule(target=made)
    def empty(self) -> tuple[Rope, list[tuple[int, int]]]:
        return Rope("I", 2), []

    @rule(target=made, pair=made, new=rows)
    def append(
        self, pair: tuple[Rope, list[tuple[int, int]]], new: list[tuple[int, int]]
    ) -> tuple[Rope, list[tuple[int, int]]]:
        rope, model = pair
        return rope.appended(array("I", [number for row in new for number in row])), model + new

    @rule(target=made, pair=made, share=st.integers(0, 100))
    def prefix(self, pair: tuple[Rope, list[tuple[int, int]]], share: int) -> tuple[Rope, list[tuple[int, int]]]:
        rope, model = pair
        count = len(model) * share // 100
        return rope.prefix(count), model[:count]

    @rule(target=made, pair=made, share=st.integers(0, 100), new=rows)
    def fork(
        self, pair: tuple[Rope, list[tuple[int, int]]], share: int, new: list[tuple[int, int]]
    ) -> tuple[Rope, list[tuple[int, int]]]:
        rope, model = pair
        count = len(model) * share // 100
        child = rope.prefix(count).appended(array("I", [number for row in new for number in row]))
        mine, theirs = child.parted_from(rope)
        assert list(mine) == list(child)
        assert list(theirs) == list(rope)
        assert all(chunk.shared for chunk in set(mine.chunks) & set(theirs.chunks))
        return mine, model[:count] + new

    @rule(pair=made, value=st.integers(0, 3), share=st.integers(0, 100))
    def find(self, pair: tuple[Rope, list[tuple[int, int]]], value: int, share: int) -> None:
        rope, model = pair
        below = len(model) * share // 100
        expected = max((index for index, row in enumerate(model[:below]) if row[0] == value), default=-1)
        assert rope.last_with(value, 0, below) == expected

    @rule(pair=made, other=rows, value=st.integers(0, 1 << 31))
    def check(self, pair: tuple[Rope, list[tuple[int, int]]], other: list[tuple[int, int]], value: int) -> None:
        rope, model = pair
        flat = [number for row in model for number in row]
        assert len(rope) == len(model)
        assert list(rope) == flat
        for index, row in enumerate(model):
            assert tuple(rope.row(index)) == row
            assert rope.number(index, 1) == row[1]
        start, stop = len(model) // 3, len(model) * 2 // 3
        assert list(rope.slice(start, stop)) == flat[2 * start : 2 * stop]
        for theirs in (other, model[: len(model) // 2] + other, model + other):
            same = next(
                (i for i, (a, b) in enumerate(zip(model, theirs, strict=False)) if a != b), min(len(model), len(theirs))
            )
            assert rope.same_rows(array("I", [number for row in theirs for number in row])) == same
        ascending = Rope("I", 2).appended(array("I", [number for row in sorted(model, key=lambda r: r[1]) for number in row]))
        assert ascending.count_to(value, 1) == sum(row[1] <= value for row in model)


TestRopes = pytest.mark.slow(Ropes.TestCase)
TestRopes.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_thousand_small_additions_make_few_chunks() -> None:
    rope = Rope("q")
    for number in range(1000):
        rope = rope.appended(array("q", range(number % 7)))
    assert len(rope.chunks) < 15


def test_what_is_shared_is_not_copied() -> None:
    parent = Rope("I").appended(array("I", range(1000)))
    forks = []
    for number in range(100):
        fork, parent = parent.prefix(900).appended(array("I", range(number))).parted_from(parent)
        forks.append(fork)
    chunks: set[Chunk] = {chunk for rope in (parent, *forks) for chunk in rope.chunks}
    assert sum(len(chunk.rows) for chunk in chunks) == 1000 + sum(range(100))
