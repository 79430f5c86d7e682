"""The shipped traces as workloads, and the block-LRU figures that are published for one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from block_lru import block_lru_hit
from hypothesis import given
from hypothesis import strategies as st

from bench.simulate.traces import TraceError, mooncake, weka
from bench.simulate.workload import Call, reply_pages

DATA = Path(__file__).parents[1] / "data" / "traces"
WEKA, MOONCAKE = DATA / "weka_small.jsonl", DATA / "mooncake_small.jsonl"


def test_weka_prompts_are_whole_pages_of_one_session() -> None:
    workload = weka(WEKA, context_tokens=262_144)
    assert len(workload.sessions) == 4
    owners: dict[int, str] = {}
    for session in workload.sessions:
        for thread in session.threads:
            for call in thread.calls:
                pages = call.pages()
                assert len(pages) == call.prompt_tokens // 64
                assert all(owners.setdefault(page, session.name) == session.name for page in pages)


def test_weka_gaps_are_what_the_model_did_not_take() -> None:
    calls = weka(WEKA, context_tokens=262_144).sessions[1].threads[0].calls
    assert all(0 <= call.gap_ms <= 3_600_000 for call in calls)
    assert any(call.gap_ms > 0 for call in calls)


def test_weka_subagents_hang_on_the_call_before_them() -> None:
    session = weka(WEKA, context_tokens=262_144).sessions[0]
    root, *children = session.threads
    assert root.parent is None
    assert children
    assert all(child.parent == 0 and child.after < len(root.calls) for child in children)


def test_what_no_context_holds_is_cut_and_counted() -> None:
    whole = weka(WEKA, context_tokens=1 << 30)
    cut = weka(WEKA, context_tokens=30_000)
    assert sum(s.calls for s in whole.sessions) == sum(s.calls for s in cut.sessions) + cut.cut_calls
    assert cut.cut_calls > 0


def test_sessions_share_pages_only_where_that_is_assumed() -> None:
    apart = {page for session in weka(WEKA, context_tokens=1 << 30).sessions for page in session.threads[0].calls[0].runs[::2]}
    shared = weka(WEKA, context_tokens=1 << 30, share_system=True).sessions
    assert min(apart) > 0
    assert all(session.threads[0].calls[0].runs[0] < 0 for session in shared)
    assert [len(s.threads[0].calls[0].pages()) for s in shared] == [s.threads[0].calls[0].prompt_tokens // 64 for s in shared]


def test_mooncake_requests_that_continue_another_are_of_its_thread() -> None:
    workload = mooncake(MOONCAKE, kind="conversation", context_tokens=1 << 30)
    assert len(workload.sessions) == 150
    by_thread: dict[str, list[Call]] = {}
    for session in workload.sessions:
        by_thread.setdefault(session.name, []).append(session.threads[0].calls[0])
    long = [calls for calls in by_thread.values() if len(calls) > 1]
    assert long
    assert all(set(calls[0].pages()[1:]) & set(calls[1].pages()) for calls in long)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1: Input data was truncated"),
        ('{"id": "a", "requests": [{"t": 0}]}', "line 1: a call wants `in` above 0, a subagent `requests`"),
        ('{"id": "a", "requests": [{"t": 0, "in": 64, "out": 1, "hr": [1]}]}', "line 1: `hr` wants a count"),
        ('{"id": "a", "requests": [{"t": "now", "in": 64, "out": 1}]}', r"line 1: Expected `float`, got `str` - at"),
        ("", "no call in it fits a worker's 1,000 tokens"),
        ('{"id": "a", "requests": [{"t": 0, "in": 2000, "out": 1}]}', "no call in it fits a worker's 1,000 tokens"),
    ],
)
def test_a_trace_of_ones_own_is_told_what_is_wrong_with_it(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=f"mine.jsonl[,:] {said}"):
        weka(path, context_tokens=1000)


def test_what_is_no_xz_is_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl.xz"
    path.write_text("{}")
    with pytest.raises(TraceError, match=r"mine\.jsonl\.xz: Input format not supported"):
        mooncake(path, kind="conversation", context_tokens=1000)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "published"), [(1e6, 5.6), (4e6, 18.8), (16e6, 35.6)])
def test_block_lru_on_mooncake_conversation_is_as_published(tokens: float, published: float) -> None:
    sessions = mooncake(kind="conversation", context_tokens=1 << 30).sessions
    calls = [session.threads[0].calls[0] for session in sessions]
    hit = block_lru_hit(calls, tokens, 512, count_from=len(calls) // 2)
    assert 100 * hit == pytest.approx(published, abs=1.0)


def test_block_lru_by_hand() -> None:
    a, b = Call(30, 1, (0, 3)), Call(30, 1, (10, 3))
    assert block_lru_hit([a, b, a], 60, 10) == pytest.approx(30 / 90)
    # Three pages: b throws a's out.
    assert block_lru_hit([a, b, a], 30, 10) == 0
    # Five: a's deepest page went first when b came, so that its first two still hit.
    assert block_lru_hit([a, b, a], 50, 10) == pytest.approx(20 / 90)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), max_size=30), st.integers(1, 30))
def test_more_capacity_never_hits_less(prompts: list[list[int]], pages: int) -> None:
    """LRU is a stack algorithm; chained page numbers stand for the prefixes."""
    numbers: dict[tuple[int, ...], int] = {}
    calls = []
    for prompt in prompts:
        chain = [numbers.setdefault(tuple(prompt[: i + 1]), len(numbers)) for i in range(len(prompt))]
        calls.append(Call(len(prompt), 1, tuple(n for page in chain for n in (page, 1))))
    assert block_lru_hit(calls, pages, 1) <= block_lru_hit(calls, pages + 1, 1)


def test_a_reply_has_the_pages_that_the_next_prompt_repeats() -> None:
    call, following = Call(128, 100, (5, 2)), Call(320, 10, (5, 5))
    assert reply_pages(call, following, 64) == [5, 6, 7]
    assert reply_pages(call, Call(320, 10, (9, 5)), 64) == [5, 6]
    assert reply_pages(call, None, 64) == [5, 6]
