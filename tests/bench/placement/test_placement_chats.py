"""Scaled sessions as chats: what is shared stays the same text, and the user speaks last."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.placement.chats import Block, chats, grown
from bench.simulate.workload import Call, SessionPlan, ThreadPlan


def plan(*calls: Call) -> SessionPlan:
    return SessionPlan("a", (ThreadPlan(calls),))


def pages(blocks: list[Block]) -> list[int]:
    return [page for block in blocks for page in block.pages]


def test_an_appended_prompt_appends_messages() -> None:
    first, second = chats(plan(Call(320, 1, (1, 20)), Call(480, 1, (1, 30))), "x")
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]


def test_tools_and_system_prompt_are_the_system_s() -> None:
    (messages,) = chats(plan(Call(320, 1, (-9, 4, 1, 16))), "x")
    assert [message["role"] for message in messages[:2]] == ["system", "user"]


def test_an_edited_prompt_keeps_what_comes_before_the_edit() -> None:
    before = grown([], range(1, 31))
    after = grown(before, [*range(1, 20), *range(500, 512)])
    assert after[:2] == before[:2]
    assert pages(after) == [*range(1, 20), *range(500, 512)]
    assert after[-1].role == "user"


def test_equal_pages_are_equal_text_in_one_run_alone() -> None:
    session = plan(Call(160, 1, (1, 10)))
    assert chats(session, "x") == chats(session, "x") != chats(session, "y")


lists = st.lists(st.integers(1, 6), max_size=40)


@given(st.lists(lists, min_size=1, max_size=5))
def test_blocks_are_the_prompt_whatever_it_was_before(prompts: list[list[int]]) -> None:
    blocks: list[Block] = []
    for prompt in prompts:
        blocks = grown(blocks, prompt)
        assert pages(blocks) == prompt
        assert blocks[-1].role == "user"
        assert all(left.role != right.role for left, right in pairwise(blocks))
