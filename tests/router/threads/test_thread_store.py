from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import Desk

from costmodel.values import WorkerKey
from engine_adapters.base import ReplyFacts
from router.dialects import CHAT, COMPLETIONS, MESSAGES
from router.threads.keys import KeyKind, ThreadHints
from router.threads.lineage import MAX_POSITIONS
from router.threads.sighting import Kind, Sighting

TOOLS = [{"name": "read"}]


def chat(*texts: str, **members: object) -> bytes:
    """Texts alternate between user and assistant."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def named(key: str, **fields: Any) -> ThreadHints:
    return ThreadHints(KeyKind.CODEX_THREAD, key, **fields)


def see(desk: Desk, *texts: str, now_ms: float = 0.0, hints: ThreadHints | None = None, **members: object) -> Sighting:
    return desk.see(chat(*texts, **members), CHAT, now_ms, hints)


def test_a_conversation_is_one_thread() -> None:
    desk = Desk()
    first, second = see(desk, "a"), see(desk, "a", "b", "c", now_ms=10)
    assert (first.kind, first.first_call, first.known, first.known_tokens) == (Kind.NEW, True, 0, 0)
    assert (second.kind, second.first_call, second.known, second.idle_ms) == (Kind.CONTINUED, False, 2, 10)
    assert first.thread == second.thread
    assert second.known_tokens == second.tokens[1] < second.prompt_tokens
    assert len(desk.store) == 1


def test_idling_beyond_the_gap_makes_a_first_call() -> None:
    desk = Desk(resume_gap_s=60)
    see(desk, "a")
    assert see(desk, "a", "b", "c", now_ms=60_000).kind is Kind.CONTINUED
    late = see(desk, "a", "b", "c", "d", "e", now_ms=120_001)
    assert (late.kind, late.first_call) == (Kind.RESUMED, True)
    assert see(desk, "a", "b", "c", "d", "e", now_ms=120_002).first_call  # its retry is one as well
    assert not see(desk, "a", "b", "c", "d", "e", "f", "g", now_ms=120_003).first_call


def test_only_the_very_prompt_that_an_engine_counted_has_no_estimated_length() -> None:
    desk = Desk()
    first = see(desk, "a")
    assert not see(desk, "a").counted
    desk.store.finished(first, ReplyFacts(prompt_tokens=17), 1.0)
    again = see(desk, "a", now_ms=2.0)
    assert (again.counted, again.prompt_tokens) == (True, 17)
    assert not see(desk, "a", "b", "c", now_ms=3.0).counted
    longer = see(desk, "a", "b", "c", now_ms=4.0)
    assert not longer.counted, "its reply is not there yet"
    desk.store.finished(longer, ReplyFacts(prompt_tokens=10_000_000), 5.0)
    assert not see(desk, "a", "b", "c", now_ms=6.0).counted, "no such count is believed"


def test_a_count_is_of_the_request_that_it_answers_though_the_thread_went_on() -> None:
    """A client that sends its next request before the last one's reply has ended."""
    desk = Desk()
    first, second = see(desk, "a" * 400), see(desk, "a" * 400, "b" * 400, "c")
    desk.store.finished(first, ReplyFacts(prompt_tokens=200), 1.0)
    between = see(desk, "a" * 400, "b" * 400, "c", now_ms=2.0)
    assert not between.counted
    assert between.tokens[1] == 200, "its rate is the thread's best guess"
    desk.store.finished(second, ReplyFacts(prompt_tokens=300), 3.0)
    assert see(desk, "a" * 400, "b" * 400, "c", now_ms=4.0).counted


def test_an_older_reply_that_ends_later_leaves_a_counted_prompt_as_it_is() -> None:
    desk = Desk()
    first, second = see(desk, "a" * 400), see(desk, "a" * 400, "b" * 400, "c")
    desk.store.finished(second, ReplyFacts(prompt_tokens=300), 1.0)
    desk.store.finished(first, ReplyFacts(prompt_tokens=200), 2.0)
    again = see(desk, "a" * 400, "b" * 400, "c", now_ms=3.0)
    assert (again.counted, again.prompt_tokens) == (True, 300)


def test_a_reply_ends_the_idling() -> None:
    desk = Desk(resume_gap_s=60)
    desk.store.finished(see(desk, "a"), ReplyFacts(), 50_000)
    assert see(desk, "a", "b", "c", now_ms=100_000).kind is Kind.CONTINUED


def test_a_fork_is_a_thread_of_its_own_and_both_go_on() -> None:
    desk = Desk()
    see(desk, "a")
    trunk = see(desk, "a", "b", "c")
    fork = see(desk, "a", "B", "C")
    assert (fork.kind, fork.parent, fork.known) == (Kind.FORK, trunk.thread, 2)
    assert fork.session == trunk.session
    assert see(desk, "a", "b", "c", "d", "e").thread == trunk.thread
    assert see(desk, "a", "B", "C", "D", "E").thread == fork.thread


def test_all_forks_from_one_place_are_the_trunks() -> None:
    """As a burst of subagents that begin with their parent's history."""
    desk = Desk()
    see(desk, "a")
    trunk = see(desk, "a", "b", "c", "d", "e")
    forks = [see(desk, "a", "b", "c", f"x{number}") for number in range(5)]
    assert {(fork.kind, fork.parent, fork.known) for fork in forks} == {(Kind.FORK, trunk.thread, 4)}
    assert len({fork.thread for fork in forks}) == 5
    again = see(desk, "a", "b", "c", "x2")
    assert (again.kind, again.thread) == (Kind.RETRY, forks[2].thread)
    on = see(desk, "a", "b", "c", "x2", "y", "z")
    assert (on.kind, on.thread) == (Kind.CONTINUED, forks[2].thread)
    of_fork = see(desk, "a", "b", "c", "x2", "y", "w")
    assert (of_fork.kind, of_fork.parent) == (Kind.FORK, forks[2].thread)
    assert see(desk, "a", "b", "c", "d", "e", "f", "g").thread == trunk.thread


def test_a_shared_preamble_is_no_fork() -> None:
    desk = Desk()
    see(desk, "system", "hello", "a")
    other = see(desk, "system", "hello", "b")
    assert (other.kind, other.known, other.parent) == (Kind.NEW, 3, None)


def test_the_same_question_later_is_a_new_conversation() -> None:
    desk = Desk()
    first = see(desk, "a")
    see(desk, "a", "b", "c")
    again = see(desk, "a")
    assert (again.kind, again.known) == (Kind.NEW, 2)
    assert again.thread != first.thread


def test_where_a_thread_ran_is_handed_on() -> None:
    desk = Desk()
    before = see(desk, "a", "b", "c")
    assert before.prefill_before is before.placed_ms is None
    prefill, decode = WorkerKey("p0"), WorkerKey("d0", 1)
    desk.store.committed(before.thread, prefill, decode, 5.0)
    for after in (see(desk, "a", "b", "c"), see(desk, "a", "b", "c", "d", "e"), see(desk, "a", "b", "c", "x", "y")):
        assert (after.prefill_before, after.decode_before, after.placed_ms) == (prefill, decode, 5.0)


def test_another_key_never_continues_a_thread() -> None:
    desk = Desk()
    mine = see(desk, "a", hints=named("k1"))
    other = see(desk, "a", hints=named("k2"))
    assert (other.kind, other.known) == (Kind.NEW, 2)
    assert other.thread != mine.thread
    assert see(desk, "a", "b", "c", hints=named("k1")).thread == mine.thread
    resumed = see(desk, "a", "b", "c", "d", "e", hints=named("k3"))
    assert (resumed.kind, resumed.parent) == (Kind.FORK, mine.thread)


def test_a_request_without_a_key_may_go_on_with_a_keyed_thread() -> None:
    desk = Desk()
    mine = see(desk, "a", hints=named("k1"))
    assert see(desk, "a", "b", "c").thread == mine.thread


def test_a_thread_named_late_keeps_its_name() -> None:
    desk = Desk()
    mine = see(desk, "a")
    assert see(desk, "a", "b", "c", hints=named("k1")).thread == mine.thread
    assert see(desk, "a", "b", "c", "d", "e", hints=named("k2")).thread != mine.thread
    assert see(desk, "a", "b", "c", "x", "y", hints=named("k1")).thread == mine.thread


def test_a_named_thread_with_a_shorter_history_was_compacted() -> None:
    desk = Desk()
    long = see(desk, "a", "b", "c" * 99, hints=named("k"), tools=TOOLS)
    desk.store.committed(long.thread, WorkerKey("p"), WorkerKey("d"), 1.0)
    short = see(desk, "summary", hints=named("k"), tools=TOOLS)
    assert (short.kind, short.first_call, short.parent, short.known) == (Kind.COMPACTED, True, long.thread, 1)
    assert short.thread == f"{long.thread}.2"
    assert short.prefill_before == WorkerKey("p")
    assert see(desk, "summary", "b", "c", hints=named("k"), tools=TOOLS).thread == short.thread
    assert see(desk, "again", hints=named("k"), tools=TOOLS).thread == f"{long.thread}.3"


def test_a_new_epoch_is_a_compaction_however_long() -> None:
    desk = Desk()
    before = see(desk, "a", "b", "c", hints=named("k", epoch="0"), tools=TOOLS)
    after = see(desk, "a", "b", "C", "d", "e" * 99, hints=named("k", epoch="1"), tools=TOOLS)
    assert (after.kind, after.parent) == (Kind.COMPACTED, before.thread)


def test_calls_without_tools_under_a_threads_key_are_other_threads() -> None:
    desk = Desk()
    title = see(desk, "make a title of this long text", hints=named("k"))
    root = see(desk, "a", hints=named("k"), tools=TOOLS)
    summary = see(desk, "sum up", hints=named("k"))
    assert [s.kind for s in (title, root, summary)] == [Kind.NEW] * 3
    assert len({s.thread for s in (title, root, summary)}) == 3
    assert see(desk, "a", "b", "c", hints=named("k"), tools=TOOLS).thread == root.thread


def test_a_session_wide_key_groups_and_the_lineage_decides() -> None:
    desk = Desk()
    session = ThreadHints(KeyKind.PROMPT_CACHE_KEY, "s")
    root = see(desk, "a", hints=session, tools=TOOLS, now_ms=7)
    first = see(desk, "sub", hints=session, now_ms=8)
    see(desk, "a", "b", "c", hints=session, tools=TOOLS, now_ms=9)
    second = see(desk, "sub two", hints=session, now_ms=10)
    assert (first.parent, second.parent) == (root.thread, root.thread)
    assert {s.session for s in (root, first, second)} == {"s"}
    assert {s.session_started_ms for s in (root, first, second)} == {7}
    assert see(desk, "sub", "b", "c", hints=session).thread == first.thread


def test_spawned_threads_find_their_parent_by_its_key() -> None:
    desk = Desk()
    root = see(desk, "a", hints=named("k"))
    child = see(desk, "sub", hints=named("c", parent="k"))
    grandchild = see(desk, "sub sub", hints=named("g", parent="c"))
    assert (child.parent, grandchild.parent) == (root.thread, child.thread)
    assert {s.session for s in (root, child, grandchild)} == {"k"}
    assert see(desk, "x", hints=named("o", parent="unknown")).parent is None


def test_a_named_threads_id_survives_a_restart() -> None:
    before = see(Desk(), "a", hints=named("k"), tools=TOOLS).thread
    assert see(Desk(), "a", "b", "c", hints=named("k"), tools=TOOLS).thread == before
    assert see(Desk(), "a", hints=named("l"), tools=TOOLS).thread != before
    assert before.isalnum()
    assert len(before) == 12


def test_tokens_are_learned() -> None:
    desk = Desk()
    first = see(desk, "a" * 4000)
    assert first.prompt_tokens == pytest.approx(1000, rel=0.02)
    desk.store.finished(first, ReplyFacts(prompt_tokens=2000, completion_tokens=40), 1.0)
    after = see(desk, "a" * 4000, "b" * 4000, "c")
    assert after.tokens[1] == pytest.approx(2000, rel=0.01)
    assert after.prompt_tokens == pytest.approx(4000, rel=0.02)
    assert after.expected_output_tokens == 40
    assert see(desk, "b" * 4000).prompt_tokens == pytest.approx(2000, rel=0.02)  # another thread of the model
    assert see(desk, "b" * 4000, model="n").prompt_tokens == pytest.approx(1000, rel=0.02)


def test_expected_output_is_bounded_by_the_clients_limit() -> None:
    desk = Desk()
    assert see(desk, "a").expected_output_tokens == 256
    assert see(desk, "b", max_tokens=9).expected_output_tokens == 9
    assert see(desk, "c", max_tokens=-1).expected_output_tokens == 1


def test_token_counts_are_a_sequence() -> None:
    tokens = see(Desk(), "a" * 400, "b" * 400).tokens
    assert list(tokens) == tokens[:] == [tokens[0], tokens[1], tokens[2]]
    assert list(tokens) == sorted(tokens)


def test_blocks_are_kept_with_the_thread() -> None:
    desk = Desk()
    first = see(desk, "a")
    assert len(first.blocks) == 0
    desk.store.extended(first.thread, array("q", [1, 2, 3]), 64)
    after = see(desk, "a", "b", "c")
    assert (list(after.blocks), after.block_tokens) == ([1, 2, 3], 64)


def test_what_is_unknown_is_ignored() -> None:
    store = Desk().store
    store.committed("nobody", WorkerKey("p"), WorkerKey("d"), 0.0)
    store.finished(see(Desk(), "a"), ReplyFacts(prompt_tokens=5), 0.0)
    store.extended("nobody", array("q"), 16)
    assert store.get("nobody") is None


def test_looking_changes_nothing() -> None:
    desk = Desk()
    first = see(desk, "a")
    for texts in (("a", "b", "c"), ("x",), ("a",)):
        scanned = desk.scan(chat(*texts), CHAT)
        looked = desk.store.look(scanned, ThreadHints(), 5.0)
        assert (looked.kind is Kind.NEW) == (texts == ("x",))
    assert len(desk.store) == 1
    again = see(desk, "a", "b", "c")
    assert (again.kind, again.thread, again.known) == (Kind.CONTINUED, first.thread, 2)


def test_multimodal_threads_say_so() -> None:
    desk = Desk()
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}
    body = json.dumps({"model": "m", "messages": [image]}).encode()
    assert desk.see(body, CHAT).multimodal
    assert not see(desk, "image_url").multimodal


def test_a_growing_prompt_is_one_thread() -> None:
    desk = Desk()

    def complete(prompt: str) -> Sighting:
        return desk.see(json.dumps({"model": "m", "prompt": prompt}).encode(), COMPLETIONS)

    first, grown = complete("x" * 5000), complete("x" * 9000)
    assert (grown.kind, grown.thread, grown.known) == (Kind.CONTINUED, first.thread, 3)
    assert complete("x" * 9000).kind is Kind.RETRY
    assert complete("y" * 100).kind is Kind.NEW
    assert complete("z" * 100).kind is Kind.NEW  # a model alone is no common history


def test_messages_and_chat_share_threads() -> None:
    desk = Desk()
    first = see(desk, "a")
    assert desk.see(chat("a", "b", "c"), MESSAGES).thread == first.thread


def test_the_bound_holds_and_the_oldest_go() -> None:
    desk = Desk(max_bytes=20_000)
    for number in range(100):
        see(desk, f"conversation {number}", now_ms=number)
    assert desk.store.used_bytes <= 20_000
    assert 5 < len(desk.store) < 25
    assert see(desk, "conversation 99", "b", "c").kind is Kind.CONTINUED
    assert see(desk, "conversation 0", "b", "c").kind is Kind.NEW
    assert desk.store.newest(1)[0].digests == see(desk, "conversation 0", "b", "c").digests


@pytest.mark.parametrize("fresh", ["key", "group"])
def test_keys_go_with_the_threads_that_came_by_them(fresh: str) -> None:
    """One session that never ends, whose threads, or one thread whose sessions, have a new name each time."""
    desk = Desk(max_bytes=20_000)
    for number in range(200):
        names = {"key": "k", "group": "s"} | {fresh: f"name {number}"}
        see(desk, f"conversation {number}", hints=named(**names), now_ms=number)
    assert desk.store.used_bytes <= 20_000
    assert len(desk.store._groups) <= len(desk.store) + 1 < 25
    check_books(desk)
    assert see(desk, "conversation 199", "b", "c", hints=named(**names)).kind is Kind.CONTINUED
    sub = see(desk, "sub", hints=named("another", group="s" if fresh == "key" else "name 199"))
    assert sub.session == ("s" if fresh == "key" else "name 0")


def test_keys_count() -> None:
    short, long = Desk(), Desk()
    see(short, "a", hints=named("k"))
    see(long, "a", hints=named("k", group="g" * 100))
    assert long.store.used_bytes > short.store.used_bytes + 100


def test_a_body_of_very_many_messages_is_served_within_the_bound() -> None:
    body = b'{"model":"m","messages":[' + b"7," * 60_000 + b'"x"]}'
    desk = Desk(max_bytes=1_000_000)
    first = desk.see(body, CHAT)
    assert len(first.digests) == MAX_POSITIONS + 1
    assert desk.store.used_bytes < 3_000_000
    for _ in range(2):  # from the memo, and again
        again = desk.see(body[:-2] + b',{"role":"user","content":"more"}]}', CHAT)
        assert (again.thread, again.digests) == (first.thread, first.digests)
    see(desk, "a")
    assert len(desk.store) == 1


def test_a_prompt_that_was_not_traced_to_its_end_teaches_nothing() -> None:
    desk = Desk()
    first = desk.see(b'{"model":"m","messages":[' + b"7," * MAX_POSITIONS + b'"x"]}', CHAT)
    desk.store.finished(first, ReplyFacts(prompt_tokens=10_000_000), 1.0)
    assert see(desk, "a" * 4000).prompt_tokens == pytest.approx(1000, rel=0.02)


def test_a_thread_larger_than_the_bound_is_served() -> None:
    desk = Desk(max_bytes=1)
    assert see(desk, "a").kind is Kind.NEW
    assert see(desk, "a", "b", "c").kind is Kind.CONTINUED
    assert len(desk.store) == 1


def test_a_checkpoint_without_its_thread_costs_a_second_reading_only() -> None:
    """The memo outlives the thread: the lineage is the same as that of a fresh gateway."""
    desk = Desk(max_bytes=1)
    texts = ["text " * 2000 for _ in range(20)]
    see(desk, *texts[:19], tools=TOOLS)
    see(desk, "other")
    after = see(desk, *texts, tools=TOOLS)
    assert (after.kind, after.known) == (Kind.NEW, 0)
    assert after.digests == see(Desk(), *texts, tools=TOOLS).digests


def test_other_tools_behind_a_known_history_make_another_lineage() -> None:
    """The checkpoint holds for the messages, whatever tools follow them."""
    desk = Desk()
    texts = ["text " * 2000 for _ in range(20)]
    see(desk, *texts[:19], tools=TOOLS)
    assert desk.scan(chat(*texts, tools=[]), CHAT).first_message > 10
    after = see(desk, *texts, tools=[])
    assert (after.kind, after.known) == (Kind.NEW, 0)
    assert after.digests == see(Desk(), *texts, tools=[]).digests


def check_books(desk: Desk) -> None:
    """What the store's maps say of each other."""
    store = desk.store
    threads, owners, groups = store._threads, store._owners, store._groups
    assert store.used_bytes == sum(thread.cost_bytes for thread in threads.values())
    for digest, thread in owners.items():
        assert threads[thread.id] is thread
        assert digest in thread.digests
    for key, group in groups.items():
        assert group.keys[key] == sum(key in thread.keys for thread in group.threads.values()) > 0
    assert {key for thread in threads.values() for key in thread.keys} == groups.keys()
    for thread in threads.values():
        assert thread.group.threads[thread.id] is thread


requests = st.tuples(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=5),  # a tree of conversations
    st.sampled_from([None, None, "k1", "k2"]),
    st.sampled_from([[], TOOLS]),
    st.sampled_from(["0", "1"]),
    st.sampled_from([None, None, "k1", "g1", "g2"]),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(requests, max_size=25), st.sampled_from([1, 4000, 1 << 30]))
def test_any_sequence_of_requests(steps: list[Any], max_bytes: int) -> None:
    desk = Desk(max_bytes=max_bytes)
    seen: set[tuple[Any, ...]] = set()
    last: dict[str, tuple[Any, ...]] = {}
    keys: dict[str, set[str | None]] = {}
    for now, (texts, key, tools, epoch, group) in enumerate(steps):
        hints = ThreadHints() if key is None else named(key, epoch=epoch, group=group)
        sighting = see(desk, *texts, hints=hints, tools=tools, now_ms=float(now))
        prompt = (bool(tools), *texts)
        prefixes = [prompt[:length] for length in range(1, len(prompt) + 1)]
        known = sum(prefix in seen for prefix in prefixes)
        assert sighting.known == known if max_bytes == 1 << 30 else sighting.known <= known
        assert len(sighting.digests) == len(sighting.tokens) == len(prompt)
        before = last.get(sighting.thread)
        if sighting.kind is Kind.CONTINUED:
            assert before is not None
            assert prompt[: len(before)] == before != prompt
        elif sighting.kind is Kind.RETRY:
            assert before == prompt
        elif max_bytes == 1 << 30:
            assert before is None
        if before is None or sighting.kind in (Kind.NEW, Kind.FORK, Kind.COMPACTED):
            keys[sighting.thread] = set()
        keys[sighting.thread].add(key)
        assert len(keys[sighting.thread] - {None}) <= 1
        seen.update(prefixes)
        last[sighting.thread] = prompt
        check_books(desk)
