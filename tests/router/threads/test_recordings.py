"""Recorded sessions of real clients, through scanner, memo and store."""

from __future__ import annotations

import json

import pytest
from recordings import NAMES, Desk, Recorded, read
from reference_canon import canonical, chain

from router.body.scan import scan
from router.threads.canon import canonical_message
from router.threads.keys import KeyKind, read_hints
from router.threads.sighting import Kind, Sighting

# What the store must say of each recording: one thread name and kind a request, threads named by order of appearance.
SIX = ["a new", *["a continued"] * 5]
THREE = SIX[:3]
TITLED = ["a new", "b new", *["b continued"] * 5]  # a title or summary call without tools comes first
STORY = {
    "aider.normal": ["a new", "b new"],  # re-inserts files near the end of its history
    "claude.f-400ctx": ["a new", "a continued", "b fork", "b retry", "c new", "c retry"],  # told its context is too long
    "claude.f-sseerr": ["a new", "a continued", "a retry", "a continued"],
    "claude.normal": SIX,
    "claude.sub": ["a new", "a continued", "b new", "b continued", "b continued", "a continued"],
    "cline.normal": THREE,
    "cline.sub": ["a new", "b new", "b continued", "b continued", "a continued"],
    "codex.normal": SIX,
    "codex.reason": SIX[:5],
    "codex.sub": ["a new", "a continued", "b new", "a continued"],
    "kimi-responses.normal": SIX,
    "kimi.normal": SIX,
    "kimi.sub": ["a new", "b new", *["b continued"] * 5, "a continued"],
    "kimicode-openai.normal": SIX,
    "kimicode-responses.normal": SIX,
    "kimicode.f-drop": SIX[:4],  # keeps the fragment in its history
    "kimicode.normal": SIX,
    "kimicode.sub": ["a new", "b new", "b continued", "b continued", "a continued"],
    "mini.normal": THREE,
    "mini.reason": SIX[:2],
    "opencode-anthropic.normal": TITLED,
    "opencode-openai.normal": TITLED,
    "opencode.f-400ctx": ["a new", "b new", "b continued", "c new", "d compacted", "d continued"],
    "opencode.f-droptool": ["a new", "b new", "b continued", "b retry", *["b continued"] * 3],
    "opencode.normal": TITLED,
    "opencode.sub": ["a new", "b new", "c new", "c continued", "c continued", "b continued"],
    "pi-anthropic.normal": SIX,
    "pi-responses.normal": SIX,
    "pi.normal": SIX,
    "pi.reason": SIX[:5],
    # qwen's `-c` moves a reminder out of the first message (clis.md 0.8): a new conversation behind the system prompt
    "qwen-responses.normal": ["a new", "a continued", "a continued", "b new", "b continued", "b continued"],
    "qwen.f-drop": ["a new", "a continued", "a continued", "b fork"],  # drops its fragment again
    "qwen.normal": ["a new", "a continued", "a continued", "b new", "b continued", "b continued"],
    "qwen.sub": ["a new", "a continued", "b new", "b continued", "b continued", "a continued"],
    "sdk-agents-chat.normal": SIX,
    "sdk-anthropic.normal": THREE,
    "sdk-openai-resp.normal": THREE,
    "sdk-openai.normal": THREE,
    "sdk-smol.normal": THREE,
}


def told(sightings: list[Sighting]) -> list[str]:
    names: dict[str, str] = {}
    return [f"{names.setdefault(s.thread, 'abcd'[min(len(names), 3)])} {s.kind}" for s in sightings]


def test_every_recording_is_told() -> None:
    assert sorted(STORY) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_request_is_recognised(name: str) -> None:
    desk = Desk()
    assert told([desk.see_recorded(entry) for entry in read(name)]) == STORY[name]


@pytest.mark.parametrize("name", NAMES)
def test_threads_are_append_only(name: str) -> None:
    """Within a thread every lineage begins with the whole one before it."""
    desk = Desk()
    last: dict[str, Sighting] = {}
    for entry in read(name):
        sighting = desk.see_recorded(entry)
        before = last.get(sighting.thread)
        if before is not None:
            assert sighting.digests[: len(before.digests)] == before.digests
            assert sighting.known >= len(before.digests)
        last[sighting.thread] = sighting


@pytest.mark.parametrize("name", NAMES)
def test_lineages_part_where_the_reference_parts(name: str) -> None:
    """Equal digests for equal reference chains, at every position, and no others; with and without a memo."""
    desk, fresh = Desk(), Desk(memo=False)
    digest_of: dict[str, int] = {}
    for entry in read(name):
        links = chain(entry.parsed, entry.dialect.message_key)
        sighting = desk.see_recorded(entry)
        assert sighting.digests == fresh.see_recorded(entry).digests
        assert len(links) == len(sighting.digests)
        for link, digest in zip(links, sighting.digests, strict=True):
            assert digest_of.setdefault(link, digest) == digest
    assert len(set(digest_of.values())) == len(digest_of)


@pytest.mark.slow
def test_messages_of_all_clients_part_where_the_reference_parts() -> None:
    digest_of: dict[str, bytes | None] = {}
    for entry in (entry for name in NAMES for entry in read(name)):
        parsed = entry.parsed[entry.dialect.message_key]
        raws = scan(entry.body, entry.dialect).messages
        for message, raw in zip(parsed, raws, strict=True):
            form = canonical_message(raw)
            reference = json.dumps(canonical(message), ensure_ascii=False)
            digest = None if form is None else form.digest
            assert digest_of.setdefault(reference, digest) == digest
    assert len(set(digest_of.values())) == len(digest_of) > 100


@pytest.mark.parametrize("name", ["codex.sub", "kimi.sub", "kimicode.sub"])
def test_subagents_with_the_session_key_of_their_root_are_threads_of_their_own(name: str) -> None:
    desk, entries = Desk(), list(read(name))
    assert len({entry.parsed["prompt_cache_key"] for entry in entries}) == 1
    sightings = [desk.see_recorded(entry) for entry in entries]
    root = sightings[0]
    spawned = [s for s in sightings if s.thread != root.thread]
    assert spawned
    assert {s.parent for s in spawned} == {root.thread}
    assert {s.session for s in sightings} == {root.session}
    assert len({s.session_started_ms for s in sightings}) == 1


@pytest.mark.parametrize(("name", "kind"), [("claude.sub", KeyKind.CLAUDE_CODE), ("opencode.sub", KeyKind.AFFINITY)])
def test_subagents_with_keys_of_their_own_stay_in_the_session(name: str, kind: KeyKind) -> None:
    desk, entries = Desk(), list(read(name))
    hints = [read_hints(entry.headers, scan(entry.body, entry.dialect)) for entry in entries]
    assert {hint.kind for hint in hints} == {kind}
    sightings = [desk.see_recorded(entry) for entry in entries]
    spawned = [s for s, hint in zip(sightings, hints, strict=True) if hint.parent is not None]
    root = sightings[-1]
    assert spawned
    assert {s.parent for s in spawned} == {root.thread}
    assert {s.session for s in sightings} == {root.session}


def test_first_calls_are_first_turns() -> None:
    desk = Desk()
    assert [desk.see_recorded(entry).first_call for entry in read("codex.normal")] == [True] + [False] * 5


def test_a_retry_counts_as_what_it_repeats() -> None:
    desk = Desk()
    first, *_ = read("codex.normal")
    again = first._replace(at_ms=first.at_ms + 500)
    kinds = [(s.kind, s.first_call, s.retries) for s in map(desk.see_recorded, [first, again, again])]
    assert kinds == [(Kind.NEW, True, 0), (Kind.RETRY, True, 1), (Kind.RETRY, True, 2)]


def test_sessions_that_ask_the_same_are_told_apart_by_their_keys() -> None:
    """Two Codex sessions with one prompt: equal lineages, two threads, and each goes on by itself."""
    desk, entries = Desk(), list(read("codex.normal"))
    other = [_renamed(entry) for entry in entries]
    mine = [desk.see_recorded(entry) for pair in zip(entries, other, strict=True) for entry in pair]
    assert told(mine) == ["a new", "b new", *["a continued", "b continued"] * 5]
    assert mine[1].known == len(mine[0].digests)  # what the first has asked is known, whoever asks


def _renamed(entry: Recorded) -> Recorded:
    session = dict(entry.headers)[b"session-id"]
    headers = [(key, value.replace(session, b"another-session")) for key, value in entry.headers]
    return entry._replace(headers=headers, body=entry.body.replace(session, b"another-session"))
