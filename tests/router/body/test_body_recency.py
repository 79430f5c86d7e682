from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.body.recency import RecentMap


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=200), st.integers(2, 12))
def test_bounded_and_never_wrong(steps: list[tuple[bool, int]], capacity: int) -> None:
    recent: RecentMap[int, int] = RecentMap(capacity)
    latest: dict[int, int] = {}
    for number, (put, key) in enumerate(steps, 1):
        if put:
            recent.put(key, number)
            latest[key] = number
        else:
            assert recent.get(key) in (None, latest.get(key))
        assert len(recent) <= capacity + capacity % 2


@given(st.integers(2, 20))
def test_what_is_used_stays(capacity: int) -> None:
    recent: RecentMap[str, int] = RecentMap(capacity)
    recent.put("kept", 1)
    for number in range(10 * capacity):
        assert recent.get("kept") == 1
        recent.put(str(number), number)
    assert recent.get("0") is None
