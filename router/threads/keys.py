"""What a client tells about its conversation, from headers and body, in the order of clis.md 0.3-6.

A key groups; the lineage decides. Some keys name one thread, some a whole session: Codex, kimi-cli and Kimi Code send one
`prompt_cache_key` for the root and all subagents. Knows headers and two body members, no messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec
import xxhash

from router.body.scanned import Scanned

_MAX_KEY_CHARS = 128
_WANTED = frozenset(
    {
        b"thread-id",
        b"session-id",
        b"session_id",
        b"x-session-affinity",
        b"x-session-id",
        b"x-parent-session-id",
        b"x-claude-code-session-id",
        b"x-claude-code-agent-id",
        b"x-litellm-session-id",
        b"x-codex-window-id",
        b"x-codex-parent-thread-id",
        b"x-codex-turn-metadata",
        b"x-stainless-retry-count",
    }
)


class KeyKind(Enum):
    """Where the key came from; `value` is what it is called in thread ids and admin."""

    CODEX_THREAD = "thread-id"
    AFFINITY = "x-session-affinity"
    CLAUDE_CODE = "x-claude-code-session-id"
    SESSION_HEADER = "session-id"
    LITELLM = "x-litellm-session-id"
    PROMPT_CACHE_KEY = "prompt_cache_key"
    USER_ID = "metadata.user_id"
    CONTENT = "content"  # the client sends nothing: the lineage alone


_SESSION_WIDE = frozenset({KeyKind.PROMPT_CACHE_KEY, KeyKind.USER_ID})


class ThreadHints(msgspec.Struct, frozen=True):
    kind: KeyKind = KeyKind.CONTENT
    key: str | None = None  # thread or session, by `kind`
    group: str | None = None  # the session that the thread belongs to, where it has a name of its own
    parent: str | None = None  # key of the thread that spawned this one
    epoch: str | None = None  # changes with every compaction (Codex)
    compacting: bool = False  # this very request asks for the summary
    sdk_retries: int = 0  # x-stainless-retry-count: reliable only when above 0

    @property
    def names_thread(self) -> bool:
        """Whether the key is one thread's, not a whole session's."""
        return self.key is not None and self.kind not in _SESSION_WIDE


NO_HINTS = ThreadHints()


class _ClaudeUser(msgspec.Struct):
    session_id: str


def read_hints(headers: Iterable[tuple[bytes, bytes]], scanned: Scanned[Any]) -> ThreadHints:
    """`headers`: names in lower case, as ASGI gives them."""
    found = {name: value for name, value in headers if name in _WANTED and value}
    if found:
        hints = _from_headers(found)
        if hints is not None:
            return hints
    if (key := scanned.prompt_cache_key) is not None:
        return ThreadHints(KeyKind.PROMPT_CACHE_KEY, _key(key), sdk_retries=_retries(found))
    if (user := scanned.user_id) is not None and (session := _claude_session(user)) is not None:
        return ThreadHints(KeyKind.USER_ID, _key(session), sdk_retries=_retries(found))
    return ThreadHints(sdk_retries=_retries(found)) if found else NO_HINTS


def _from_headers(found: dict[bytes, bytes]) -> ThreadHints | None:
    retries = _retries(found)
    if (thread := found.get(b"thread-id")) is not None:
        return _codex(thread, found, retries)
    if (affinity := found.get(b"x-session-affinity") or found.get(b"x-session-id")) is not None:
        parent = _text(found.get(b"x-parent-session-id"))
        return ThreadHints(KeyKind.AFFINITY, _text(affinity), parent or _text(affinity), parent, sdk_retries=retries)
    if (session := _text(found.get(b"x-claude-code-session-id"))) is not None:
        agent = _text(found.get(b"x-claude-code-agent-id"))
        key = f"{session}/{agent}" if agent else session
        return ThreadHints(KeyKind.CLAUDE_CODE, key, session, session if agent else None, sdk_retries=retries)
    if (own := found.get(b"session_id") or found.get(b"session-id")) is not None:
        return ThreadHints(KeyKind.SESSION_HEADER, _text(own), sdk_retries=retries)
    if (litellm := found.get(b"x-litellm-session-id")) is not None:
        return ThreadHints(KeyKind.LITELLM, _text(litellm), sdk_retries=retries)
    return None


def _codex(thread: bytes, found: dict[bytes, bytes], retries: int) -> ThreadHints:
    window = found.get(b"x-codex-window-id", b"")
    return ThreadHints(
        KeyKind.CODEX_THREAD,
        _text(thread),
        _text(found.get(b"session-id")),
        _text(found.get(b"x-codex-parent-thread-id")),
        _text(window.rpartition(b":")[2]) if b":" in window else None,
        b'"request_kind":"compaction"' in found.get(b"x-codex-turn-metadata", b""),
        retries,
    )


def _claude_session(user_id: str) -> str | None:
    """The session in the JSON that Claude Code puts into `metadata.user_id`; any other user id names a user, not a thread."""
    if not user_id.startswith("{"):
        return None
    try:
        return msgspec.json.decode(user_id, type=_ClaudeUser).session_id or None
    except msgspec.DecodeError:
        return None


def _retries(found: dict[bytes, bytes]) -> int:
    count = found.get(b"x-stainless-retry-count", b"0")
    return int(count) if len(count) < 4 and count.isdigit() else 0


def _text(value: bytes | None) -> str | None:
    return _key(value.decode("latin-1")) if value else None


def _key(key: str) -> str:
    """Keys are kept for long: an overlong one is replaced by its hash."""
    return key if len(key) <= _MAX_KEY_CHARS else xxhash.xxh3_128_hexdigest(key.encode("utf-8", "surrogatepass"))
