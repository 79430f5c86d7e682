"""What is noticed in a streamed reply on its way to the client: first event, usage, finish, closed tool calls, and what is cut.

Works on pieces of whole SSE events. The usual piece, one more event with the next token, is recognised at a glance; others cost
a few substring searches, and events are taken apart only where a marker was found. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable

from router.body.strip import details, is_details_only_chunk, is_usage_only_chunk, strip_member
from router.dialects.dialect import Dialect, split_blocks
from router.turn.shape import EventShape
from router.wire.sse import EventSplitter, ToolCallTracker

_SGLEXT = b'"sglext"'


class StreamObserver:
    """Reads one stream. `strip_usage`, `strip_details`: the client did not ask for what was requested upstream. `on_tool` is
    told the name of every tool call when it closes."""

    __slots__ = (
        "_dialect",
        "_on_tool",
        "_pending",
        "_shape",
        "_splitter",
        "_strip_details",
        "_strip_usage",
        "_tracker",
        "_whole",
        "details",
        "ended",
        "error_event",
        "finish_reason",
        "started",
        "usage",
    )

    def __init__(
        self, dialect: Dialect, *, strip_usage: bool, strip_details: bool, on_tool: Callable[[str], None] | None = None
    ) -> None:
        self._dialect = dialect
        self._on_tool = on_tool
        self._strip_usage = strip_usage
        self._strip_details = strip_details
        self._splitter = EventSplitter()
        self._whole = True  # the splitter holds nothing back
        self._shape = EventShape()  # of events after the first real one
        self._tracker = ToolCallTracker(dialect.name)
        self._pending = b""  # events before the first real one
        self.started = False  # a real event has passed
        self.ended = False  # the dialect's own end has passed
        self.error_event: bytes | None = None
        self.usage: bytes | None = None  # raw JSON
        self.details: bytes | None = None
        self.finish_reason: str | None = None

    @property
    def closed_tool_calls(self) -> tuple[str, ...]:
        return tuple(call.name for call in self._tracker.closed)

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go to the client now. Sets `error_event` instead when the engine reports a failure."""
        if self._whole and self._shape.fits(data):
            return data
        events = self._splitter.feed(data)
        self._whole = events is data
        if not events:
            return b""
        dialect = self._dialect
        if dialect.may_hold_error(events):
            self.error_event = next((event for event in split_blocks(events) if dialect.is_error(event)), None)
            if self.error_event is not None:
                return b""
        if not self.started:
            events = self._pending + events
            if not dialect.has_real_event(events):
                self._pending = events
                return b""
            self.started = True
            self._pending = b""
        return self._notice(events)

    def _notice(self, events: bytes) -> bytes:
        dialect = self._dialect
        uneventful = True
        if dialect.finish_marker in events:
            uneventful = False
            self._read_finish(events)
        if self._tracker.concerns(events):
            uneventful = False
            self._read_tools(events)
        if dialect.has_end(events):
            uneventful = False
            self.ended = True
        if dialect.may_hold_usage(events) or _SGLEXT in events:
            return self._take_usage(events)
        if uneventful:
            self._shape.learn(events)
        return events

    def _read_tools(self, events: bytes) -> None:
        closed = self._tracker.closed
        known = len(closed)
        self._tracker.feed(events)
        if self._on_tool is not None and len(closed) > known:
            for call in closed[known:]:
                self._on_tool(call.name)

    def _read_finish(self, events: bytes) -> None:
        for event in split_blocks(events):
            self.finish_reason = self._dialect.finish_reason(event) or self.finish_reason

    def _take_usage(self, events: bytes) -> bytes:
        """Read usage and cache details, and cut what the client did not ask for."""
        kept: list[bytes] = []
        for event in split_blocks(events):
            found = self._dialect.usage(event)
            if found is not None:
                self.usage = self._dialect.merge_usage(self.usage, found)
            self.details = details(event) or self.details
            if self._strip_usage and is_usage_only_chunk(event):
                continue
            if self._strip_details and _SGLEXT in event:
                if is_details_only_chunk(event):
                    continue
                event = strip_member(event, "sglext")
            kept.append(event + b"\n\n")
        return b"".join(kept)
