"""One conversation with an engine's replay socket: ask for batches from a number on, take what comes, notice what went missing.

An engine's ROUTER socket drops messages when the asker reads too slowly, without a word. After a hole inside a replay, or an
end that never comes, a successor asks again from there, a bounded number of times and on a socket of its own, so that
leftovers cannot mix in. A replay that begins behind what was asked for is no fault: the engine has forgotten what lies before.
"""

from __future__ import annotations

from enum import Enum, auto

import zmq
import zmq.asyncio

from engine_adapters.sglang.frames import EndOfReplay, Frame, replay_frame, replay_request

RECEIVE_LIMIT = 20_000  # messages held for us; engines keep 10,000 batches by default
MAX_ASKS = 4


class Progress(Enum):
    MORE = auto()
    DONE = auto()
    HOLE = auto()  # the engine dropped messages: what was read so far is good, the rest must be asked for again


class ReplayReader:
    """Serves one ticket of the feed. The owner closes it, judges its silence, and replaces it by its successor where needed."""

    def __init__(
        self, context: zmq.asyncio.Context, address: str, from_seq: int, ticket: int, now_s: float, asks: int = 1
    ) -> None:
        self.ticket = ticket
        self.heard_s = now_s
        self.socket = context.socket(zmq.DEALER)
        self._context = context
        self._address = address
        self._next = from_seq  # lowest number still wanted
        self._begun = False
        self._asks = asks
        self._open()

    def read(self, limit: int, now_s: float) -> tuple[list[Frame], Progress]:
        """Up to `limit` batches that have arrived, in order, and how the replay stands after them. Never waits."""
        frames: list[Frame] = []
        while len(frames) < limit and (reply := self._receive()) is not None:
            self.heard_s = now_s
            if isinstance(reply, EndOfReplay):
                return frames, Progress.DONE
            if self._begun and reply.seq > self._next:
                return frames, Progress.HOLE
            self._begun = True
            self._next = max(self._next, reply.seq + 1)
            frames.append(reply)
        return frames, Progress.MORE

    def successor(self, now_s: float) -> ReplayReader | None:
        """Asks again for what is still missing; None when this never answered or was asked often enough."""
        if not self._begun or self._asks >= MAX_ASKS:
            return None
        return ReplayReader(self._context, self._address, self._next, self.ticket, now_s, self._asks + 1)

    def close(self) -> None:
        self.socket.close(linger=0)

    def _open(self) -> None:
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        self._plain = zmq.Socket(shadow=self.socket)
        self._plain.connect(self._address)
        self._plain.send_multipart(replay_request(self._next), zmq.NOBLOCK)  # queued until the connection stands

    def _receive(self) -> Frame | EndOfReplay | None:
        while True:
            try:
                parts = self._plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            reply = replay_frame(parts)
            if reply is not None:
                return reply
