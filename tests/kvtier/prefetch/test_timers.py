"""One heap of instants: order, replacement, and a bound on what lingers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.prefetch.timers import Timers

steps = st.lists(st.tuples(st.integers(0, 9), st.none() | st.floats(0, 100)), max_size=200)


@pytest.mark.slow
@given(steps, st.floats(0, 100))
def test_what_is_due_is_what_a_map_says(changes: list[tuple[int, float | None]], now: float) -> None:
    timers: Timers[int] = Timers()
    truth: dict[int, float] = {}
    for key, when in changes:
        if when is None:
            timers.cancel(key)
            truth.pop(key, None)
        else:
            timers.set(key, when)
            truth[key] = when
    assert timers.next_ms == min(truth.values(), default=None)
    due = list(timers.due(now))
    assert sorted(due) == sorted(key for key, when in truth.items() if when <= now)
    assert [truth[key] for key in due] == sorted(truth[key] for key in due)
    assert len(timers) == len(truth) - len(due)


def test_keys_set_while_others_are_due_come_too() -> None:
    timers: Timers[int] = Timers()
    timers.set(1, 5.0)
    seen = []
    for key in timers.due(10.0):
        seen.append(key)
        if key == 1:
            timers.set(2, 6.0)
            timers.set(3, 11.0)
    assert seen == [1, 2]
    assert timers.next_ms == 11.0


def test_replaced_entries_do_not_pile_up() -> None:
    timers: Timers[int] = Timers()
    for i in range(10_000):
        timers.set(i % 10, 1e9 + i)
    assert len(timers._heap) < 100
