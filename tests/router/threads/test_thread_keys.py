from __future__ import annotations

import json

import pytest

from router.body.scan import scan
from router.dialects import CHAT, MESSAGES
from router.threads.keys import KeyKind, ThreadHints, read_hints

AFFINITY = [(b"x-session-affinity", b"ses_1"), (b"x-session-id", b"ses_1")]
CLAUDE = [(b"x-claude-code-session-id", b"c1")]
CODEX = [(b"thread-id", b"t1"), (b"session-id", b"s1"), (b"x-codex-window-id", b"t1:2")]
COMPACTION = (b"x-codex-turn-metadata", b'{"turn_id":"x","request_kind":"compaction"}')


def hints(headers: list[tuple[bytes, bytes]], **members: object) -> ThreadHints:
    body = {"model": "m", "messages": [], **members}
    return read_hints(headers, scan(json.dumps(body).encode(), MESSAGES))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], ThreadHints()),
        ([(b"user-agent", b"x"), (b"x-session-id", b"")], ThreadHints()),
        (CODEX, ThreadHints(KeyKind.CODEX_THREAD, "t1", "s1", epoch="2")),
        (
            [*CODEX, (b"x-codex-parent-thread-id", b"t0"), COMPACTION],
            ThreadHints(KeyKind.CODEX_THREAD, "t1", "s1", "t0", "2", compacting=True),
        ),
        (AFFINITY, ThreadHints(KeyKind.AFFINITY, "ses_1", "ses_1")),
        ([*AFFINITY, (b"x-parent-session-id", b"ses_0")], ThreadHints(KeyKind.AFFINITY, "ses_1", "ses_0", "ses_0")),
        (CLAUDE, ThreadHints(KeyKind.CLAUDE_CODE, "c1", "c1")),
        ([*CLAUDE, (b"x-claude-code-agent-id", b"a1")], ThreadHints(KeyKind.CLAUDE_CODE, "c1/a1", "c1", "c1")),
        ([(b"session_id", b"p1")], ThreadHints(KeyKind.SESSION_HEADER, "p1")),
        ([(b"session-id", b"p1")], ThreadHints(KeyKind.SESSION_HEADER, "p1")),
        ([(b"x-litellm-session-id", b"l1")], ThreadHints(KeyKind.LITELLM, "l1")),
        ([(b"x-stainless-retry-count", b"2")], ThreadHints(sdk_retries=2)),
        ([(b"x-stainless-retry-count", b"-1")], ThreadHints()),
        ([*CLAUDE, (b"x-stainless-retry-count", b"1")], ThreadHints(KeyKind.CLAUDE_CODE, "c1", "c1", sdk_retries=1)),
    ],
)
def test_headers(headers: list[tuple[bytes, bytes]], expected: ThreadHints) -> None:
    assert hints(headers) == expected


def test_the_order_of_keys() -> None:
    """Each key is taken only where none before it is present (clis.md 0.3)."""
    ordered = [
        (KeyKind.CODEX_THREAD, CODEX),
        (KeyKind.AFFINITY, AFFINITY),
        (KeyKind.CLAUDE_CODE, CLAUDE),
        (KeyKind.SESSION_HEADER, [(b"session_id", b"p1")]),
        (KeyKind.LITELLM, [(b"x-litellm-session-id", b"l1")]),
    ]
    user = {"user_id": '{"session_id":"u1"}'}
    for index, (kind, _) in enumerate(ordered):
        headers = [header for _, group in ordered[index:] for header in group]
        assert hints(headers, prompt_cache_key="k", metadata=user).kind is kind
    assert hints([], prompt_cache_key="k", metadata=user) == ThreadHints(KeyKind.PROMPT_CACHE_KEY, "k")
    assert hints([], metadata=user) == ThreadHints(KeyKind.USER_ID, "u1")


@pytest.mark.parametrize(
    "user_id", ["user-7", "{", '{"device_id":"x"}', '{"session_id":7}', '{"session_id":""}', 7, None, {"session_id": "x"}]
)
def test_other_user_ids_name_no_thread(user_id: object) -> None:
    assert hints([], metadata={"user_id": user_id}) == ThreadHints()


@pytest.mark.parametrize("key", ["", None, 7])
def test_a_cache_key_must_be_text(key: object) -> None:
    assert hints([], prompt_cache_key=key) == ThreadHints()


def test_session_wide_keys_name_no_thread() -> None:
    assert hints(CLAUDE).names_thread
    assert not hints([], prompt_cache_key="k").names_thread
    assert not hints([]).names_thread


def test_overlong_keys_are_hashed() -> None:
    long, other = ("x" * 4000, "x" * 3999 + "y")
    keys = {hints([], prompt_cache_key=key).key for key in (long, other)}
    assert len(keys) == 2
    assert all(key is not None and len(key) == 32 for key in keys)


def test_any_dialect_may_carry_a_cache_key() -> None:
    assert read_hints([], scan(b'{"model":"m","messages":[],"prompt_cache_key":"k"}', CHAT)).key == "k"
