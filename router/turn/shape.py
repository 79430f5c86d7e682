"""Recognises the usual event of a stream at a glance: it differs from those before it in one plain string, the next token.

Searching an event for everything that may be worth noticing costs more than relaying it. An event of a known shape needs no
search: what is around the token was searched before, and a token without quotes and line breaks can hide nothing.
"""

from __future__ import annotations

_LESSONS = 16  # streams whose events never settle into a shape are not studied for ever
_LONG_BYTES = 4096  # nor are long events, which are few


class EventShape:
    """What consecutive uneventful events of one stream have in common: `head`, then the token, then `tail`."""

    __slots__ = ("_head", "_last", "_lessons", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._last = b""
        self._lessons = _LESSONS

    def fits(self, events: bytes) -> bool:
        """Whether these whole events, mostly one, can hold nothing that the events learned from did not hold."""
        head, tail = self._head, self._tail
        if not head:
            return False
        start, size = 0, len(events)
        while start < size:
            if not events.startswith(head, start):
                return False
            start += len(head)
            end = events.find(b'"', start)
            if not events.startswith(tail, end) or events.find(b"\n", start, end) >= 0:
                return False
            start = end + len(tail)
        return True

    def learn(self, event: bytes) -> None:
        """`event` was searched and found to hold nothing."""
        last, self._last = self._last, event
        if not self._lessons or not last or last == event or len(event) > _LONG_BYTES:
            return
        self._lessons -= 1
        # Cut back to whole quotes: tokens may begin or end alike.
        head = _common_start(last, event).rpartition(b'"')
        tail = _common_start(last[::-1], event[::-1])[::-1].partition(b'"')
        self._head, self._tail = head[0] + head[1], tail[1] + tail[2]


def _common_start(one: bytes, other: bytes) -> bytes:
    length = min(len(one), len(other))
    return one[: next((i for i in range(length) if one[i] != other[i]), length)]
