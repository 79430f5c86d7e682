"""Server-sent events as bytes: cut a stream into pieces of whole events, however the network cut it.

No event is parsed and none is changed; the pieces joined are the stream. The usual piece, one read holding whole events, passes
as the object it came as.
"""

from __future__ import annotations

from router.errors import EngineDied
from router.wire.toolcalls import ClosedToolCall, ToolCallTracker

__all__ = ["ClosedToolCall", "EventSplitter", "ToolCallTracker"]

_EDGE_BYTES = 2  # an event's end may begin this many bytes before the piece that completes it: "\n\r" + "\n"


class EventSplitter:
    """Holds back the tail that is not yet a whole event. Lines may end in LF or CRLF (WHATWG HTML 9.2.5, without lone CR)."""

    __slots__ = ("_edge", "_held", "_held_bytes", "_max_event_bytes")

    def __init__(self, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_event_bytes = max_event_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._edge = b""  # the last bytes of what is held

    def feed(self, data: bytes) -> bytes:
        """The whole events that are there now; empty where none is. Raises EngineDied for an event above the bound."""
        if not self._held:
            if data.endswith((b"\n\n", b"\n\r\n")):
                return data
            cut = _last_end(data)
        else:
            # A boundary inside what is held would have been seen before: only the seam and the new bytes are searched.
            cut = _last_end(self._edge + data) - len(self._edge)
        if cut <= 0:
            self._hold(data)
            return b""
        events = b"".join((*self._held, data[:cut]))
        self._held.clear()
        self._held_bytes = 0
        self._edge = b""
        if cut < len(data):
            self._hold(data[cut:])
        return events

    def flush(self) -> bytes:
        """What is held when the stream ends: an event without its closing blank line."""
        tail = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self._edge = b""
        return tail

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self._edge = (self._edge + data[-_EDGE_BYTES:])[-_EDGE_BYTES:]
        if self._held_bytes > self._max_event_bytes:
            raise EngineDied(f"an event of the engine exceeds {self._max_event_bytes} bytes")


def _last_end(data: bytes) -> int:
    """Where the last whole event ends; 0 or less where none does."""
    lf = data.rfind(b"\n\n")
    crlf = data.rfind(b"\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0)
