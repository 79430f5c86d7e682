"""What came in, for tests: counts and the last requests as they arrived."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """One inference call. `body` is the text as it came, cut to a bound."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: str


class Journal:
    """Bounded: the last `KEPT` calls, each body cut to `BODY_BYTES`."""

    KEPT = 16
    BODY_BYTES = 1 << 20

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.requests = 0
        self.active = getattr(self, "active", 0)
        self.active_max = self.active
        self.aborted = 0
        self.finished = 0
        self.abort_calls: deque[str] = deque(maxlen=256)
        self.seen: deque[Seen] = deque(maxlen=self.KEPT)
        self.paths: dict[str, int] = {}

    def arrived(self, path: str, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        self.requests += 1
        self.active += 1
        self.active_max = max(self.active_max, self.active)
        self.seen.append(Seen(path, headers, body[: self.BODY_BYTES].decode("utf-8", "replace")))

    def left(self, *, aborted: bool) -> None:
        """The reply of an arrived call ended; `aborted` when the client left or the call was aborted."""
        self.active -= 1
        if aborted:
            self.aborted += 1
        else:
            self.finished += 1

    def routed(self, path: str) -> None:
        if path in self.paths or len(self.paths) < 256:
            self.paths[path] = self.paths.get(path, 0) + 1

    def report(self) -> dict[str, Any]:
        last = self.seen[-1] if self.seen else None
        return {
            "requests": self.requests,
            "active": self.active,
            "active_max": self.active_max,
            "aborted": self.aborted,
            "finished": self.finished,
            "abort_calls": list(self.abort_calls),
            "paths": self.paths,
            "last_path": last.path if last else None,
            "last_headers": [list(pair) for pair in last.headers] if last else None,
            "last_body": last.body if last else None,
            "seen": [msgspec.to_builtins(one) for one in self.seen],
        }
