"""The subscribing half of a feed: a SUB socket on one rank's publisher, with its connection's ups and downs.

Only moves frames; what they mean is `frames`' and what may be believed is the feed's.
"""

from __future__ import annotations

from enum import Enum, auto

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from engine_adapters.sglang.frames import Frame, live_frame

RECEIVE_LIMIT = 100_000  # messages, as many as engines hold for us
_HEARTBEAT_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 15_000  # a host that vanished without a word is noticed within this
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 5_000


class LinkChange(Enum):
    UP = auto()
    DOWN = auto()


class Subscription:
    """Connects at once and reconnects for ever. The owner closes it."""

    def __init__(self, context: zmq.asyncio.Context, address: str, topic: str) -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._plain = zmq.Socket(shadow=self.socket)
        self._plain_monitor = zmq.Socket(shadow=self.monitor)
        self._plain.connect(address)

    def read(self, limit: int) -> list[Frame]:
        """Up to `limit` batches that have arrived. Never waits."""
        frames: list[Frame] = []
        while len(frames) < limit:
            try:
                parts = self._plain.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            frame = live_frame(parts)
            if frame is not None:
                frames.append(frame)
        return frames

    def link_changes(self) -> list[LinkChange]:
        """What happened to the connection since last asked, in order. Never waits."""
        changes: list[LinkChange] = []
        while True:
            try:
                message = parse_monitor_message(self._plain_monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return changes
            changes.append(LinkChange.DOWN if message["event"] == zmq.EVENT_DISCONNECTED else LinkChange.UP)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close(linger=0)
