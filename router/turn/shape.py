"""Recognises the usual event of a stream at a glance: it differs from those before it in one plain string, the next token.

Searching an event for everything that may be worth noticing costs more than relaying it. An event of a known shape needs no
search: what is around the token was searched before, and a token without quotes and line breaks can hide nothing.
"""

from __future__ import annotations

from os.path import commonprefix

_LESSONS = 16  # streams whose events never settle into a shape are not studied for ever


class EventShape:
    """What consecutive uneventful events of one stream have in common: `head`, then the token, then `tail`."""

    __slots__ = ("_head", "_last", "_lessons", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._last = b""
        self._lessons = _LESSONS

    def fits(self, event: bytes) -> bool:
        """Whether `event` can hold nothing that the events learned from did not hold."""
        head, tail = self._head, self._tail
        if not head or not event.startswith(head) or not event.endswith(tail):
            return False
        start, end = len(head), len(event) - len(tail)
        return start <= end and event.find(b'"', start, end) < 0 and event.find(b"\n", start, end) < 0

    def learn(self, event: bytes) -> None:
        """`event` was searched and found to hold nothing."""
        last, self._last = self._last, event
        if not self._lessons or not last or last == event:
            return
        self._lessons -= 1
        # Cut back to whole quotes: tokens may begin or end alike.
        head = _common_start(last, event).rpartition(b'"')
        tail = _common_start(last[::-1], event[::-1])[::-1].partition(b'"')
        self._head, self._tail = head[0] + head[1], tail[1] + tail[2]


def _common_start(one: bytes, other: bytes) -> bytes:
    return bytes(commonprefix([one, other]))
