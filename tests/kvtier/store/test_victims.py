"""Victims in the order of their worths, whatever was touched, held, tagged or forgotten since they were queued."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kvtier.page.key import PageKey
from kvtier.policies.eviction import Lru
from kvtier.store.page import Page
from kvtier.store.victims import VictimQueue

LENGTH = 4096


def page(number: int, last_ms: float) -> Page:
    return Page(PageKey(bytes([number])), LENGTH, b"", 16, depth=number, offset=LENGTH * number, last_ms=last_ms)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 12), st.integers(0, 3)),
        st.tuples(st.just("touch"), st.integers(0, 60), st.integers(1, 9)),
        st.tuples(st.just("hold"), st.integers(0, 60), st.integers(1, 3)),
        st.tuples(st.just("forget"), st.integers(0, 60), st.integers(1, 3)),
        st.tuples(st.just("again"), st.integers(0, 60), st.integers(1, 3)),
        st.tuples(st.just("pop"), st.integers(1, 9), st.integers(0, 0)),
        st.tuples(st.just("take in"), st.integers(0, 0), st.integers(0, 0)),
    ),
    max_size=60,
)


@given(steps)
def test_the_least_worthy_pages_go_first(steps: list[tuple[str, int, int]]) -> None:
    queue, now_ms = VictimQueue(Lru()), 0.0
    pages: list[Page] = []
    for kind, first, second in steps:
        now_ms += 1
        some = pages[first : first + second]
        if kind == "push":
            fresh = [page(len(pages) + number, now_ms + second * (number % 2)) for number in range(first)]
            pages += fresh
            queue.push(fresh)
        elif kind == "touch":
            for each in some:
                each.last_ms = now_ms + 5
        elif kind == "hold":
            for each in some:
                each.holds = 1 - each.holds
                if each.evictable and not each.ticket:
                    queue.push([each])
        elif kind == "forget":
            for each in some:
                queue.forget(each)
                each.offset = -1
        elif kind == "again":  # tagged: worth less than before
            for each in some:
                if each.evictable:
                    queue.forget(each)
                    each.last_ms = max(0.0, each.last_ms - 10)
                    queue.push([each])
        elif kind == "take in":
            queue.take_in()
        else:
            able = sorted((each for each in pages if each.evictable), key=Lru().worth)
            victims = queue.pop(LENGTH, first)
            assert victims == able[:first]
            for each in victims:
                each.offset = -1
    able = sorted((each for each in pages if each.evictable), key=Lru().worth)
    assert queue.pop(LENGTH, 1000) == able
    assert queue.peek(LENGTH) is None
