"""What is noticed in a reply on its way to the client: first event, usage, finish, closed tool calls, and what must be cut.

Works on pieces of whole SSE events. A piece costs a few substring searches; events are taken apart only where a marker was
found. Knows no sockets.
"""

from __future__ import annotations

from router.body.strip import strip_member
from router.dialects.dialect import Dialect
from router.wire.sse import EventSplitter, ToolCallTracker, split_events

_USAGE = b'"usage":{'
_SGLEXT = b'"sglext"'


class StreamObserver:
    """Reads one stream. `strip_usage`: the client did not ask for the usage chunk that was requested upstream."""

    __slots__ = (
        "_dialect",
        "_pending",
        "_splitter",
        "_strip_usage",
        "_tracker",
        "details_event",
        "ended",
        "error_event",
        "finish_event",
        "started",
        "usage_event",
    )

    def __init__(self, dialect: Dialect, *, strip_usage: bool) -> None:
        self._dialect = dialect
        self._strip_usage = strip_usage
        self._splitter = EventSplitter()
        self._tracker = ToolCallTracker(dialect.name)
        self._pending = b""  # events before the first real one
        self.started = False  # a real event has passed
        self.ended = False  # the dialect's own end marker has passed
        self.error_event: bytes | None = None
        self.usage_event: bytes | None = None
        self.details_event: bytes | None = None
        self.finish_event: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go to the client now. Sets `error_event` instead when the engine reports a failure."""
        events = self._splitter.feed(data)
        if not events:
            return b""
        dialect = self._dialect
        if dialect.may_hold_error(events):
            self.error_event = next((event for event in split_events(events) if dialect.is_error(event)), None)
            if self.error_event is not None:
                return b""
        if not self.started:
            self._pending += events
            if not dialect.has_real_event(self._pending):
                return b""
            self.started = True
            events, self._pending = self._pending, b""
        return self._notice(events)

    @property
    def closed_tool_calls(self) -> tuple[str, ...]:
        return tuple(call.name for call in self._tracker.closed)

    def _notice(self, events: bytes) -> bytes:
        if _USAGE in events or _SGLEXT in events or self._dialect.usage_marker in events:
            events = self._take_usage(events)
        if self._dialect.finish_marker in events:
            self.finish_event = events
        if self._tracker.concerns(events):
            self._tracker.feed(events)
        if self._dialect.end_marker in events:
            self.ended = True
        return events
