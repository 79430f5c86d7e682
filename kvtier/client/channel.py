"""One blocking connection to the agent of this host: a greeting with its memory, then one question at a time."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from kvtier.wire.frames import HEADER_BYTES, FrameError, pack_frame, unpack_header
from kvtier.wire.messages import (
    PROTOCOL_VERSION,
    Greeting,
    MessageError,
    Refused,
    Reply,
    Request,
    decode_reply,
    encode,
)

_MAX_CALL = (1 << 32) - 1
_RECEIVE_BYTES = 64 << 10
_AWAKE_S = 400e-6  # looked for an answer, before it is slept for: as long as an idle agent mostly takes


class AgentUnavailable(Exception):
    """No agent, or one that did not answer in time. Pages are to be taken for missing."""


class AgentGone(AgentUnavailable):
    """It has closed the connection: another life of it may be there already."""


class AgentRefused(Exception):
    """The agent says that the request makes no sense: a fault of this client or its settings."""


class Channel:
    """Broken by anything but a whole reply in time; then it is closed, and with it go its leases and unfinished writes."""

    def __init__(self, path: Path, deadline_s: float) -> None:
        """Connect and be greeted. Raises `AgentUnavailable`."""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # the engine has no descriptors left
            raise AgentUnavailable(f"no socket for an agent: {error}") from error
        self._until_s = time.monotonic() + deadline_s
        self._call = 0
        self._unanswered = 0
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._received = bytearray()
        try:
            self._socket.settimeout(self._left_s())
            self._socket.connect(str(path))
            self._socket.settimeout(self._left_s())
            self.greeting, self._memory_fd = self._greeted()
        except (OSError, FrameError, MessageError) as error:
            self.close()
            raise AgentUnavailable(f"no agent at {path}: {error}") from error

    def take_memory_fd(self) -> int:
        """The descriptor that came with the greeting; the caller closes it."""
        fd, self._memory_fd = self._memory_fd, -1
        return fd

    @property
    def gone(self) -> bool:
        """Whether the agent has left an idle connection, which says nothing unasked."""
        try:
            said = self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not said or not self._unanswered

    def ask(self, request: Request, deadline_s: float) -> Reply:
        """Raises `AgentUnavailable`, after which the channel is closed, and `AgentRefused`."""
        until_s = time.monotonic() + deadline_s
        (call,) = self.send([request], deadline_s)
        return self.receive(call, until_s - time.monotonic())

    def send(self, requests: Sequence[Request], deadline_s: float) -> Sequence[int]:
        """Ask and go on; the numbers of the calls. A few at once: sockets hold little. Raises `AgentUnavailable`."""
        self._until_s = time.monotonic() + deadline_s
        calls = [self._next_call() for _ in requests]
        try:
            self._send(b"".join(pack_frame(call, encode(request)) for call, request in zip(calls, requests, strict=True)))
        except (OSError, FrameError) as error:
            raise self._lost(error) from error
        self._unanswered += len(calls)
        return calls

    def receive(self, call: int, deadline_s: float) -> Reply:
        """The answer to a call; what answers an earlier one is dropped. Raises as `ask`."""
        self._until_s = time.monotonic() + deadline_s
        try:
            reply = decode_reply(self._reply_to(call))
        except (OSError, FrameError, MessageError) as error:
            raise self._lost(error) from error
        if isinstance(reply, Refused):
            raise AgentRefused(reply.reason)
        return reply

    def close(self) -> None:
        self._socket.close()
        if self._memory_fd >= 0:
            os.close(self.take_memory_fd())

    _memory_fd = -1

    def _greeted(self) -> tuple[Greeting, int]:
        data, fds, _, _ = socket.recv_fds(self._socket, HEADER_BYTES, 1)
        fd = fds[0] if fds else -1
        self._socket.setblocking(False)
        self._received += data
        try:
            header = unpack_header(self._receive(HEADER_BYTES))
            greeting = decode_reply(self._receive(header.body_bytes))
            if not isinstance(greeting, Greeting) or fd < 0:
                raise MessageError("no greeting with memory: not a Unix socket of an agent")  # noqa: TRY301
            if greeting.version != PROTOCOL_VERSION:
                raise MessageError(f"the agent speaks version {greeting.version}, not {PROTOCOL_VERSION}")  # noqa: TRY301
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return greeting, fd

    def _reply_to(self, call: int) -> bytes:
        while True:
            header = unpack_header(self._receive(HEADER_BYTES))
            body = self._receive(header.body_bytes)
            self._receive(header.payload_bytes)
            self._unanswered -= 1
            if header.call == call:
                return body

    def _lost(self, error: Exception) -> AgentUnavailable:
        self.close()
        kind = AgentGone if isinstance(error, ConnectionError) else AgentUnavailable
        return kind(f"no answer: {error}")

    def _next_call(self) -> int:
        self._call = self._call % _MAX_CALL + 1
        return self._call

    def _send(self, data: bytes) -> None:
        self._left_s()
        sent = 0
        while sent < len(data):
            try:
                sent += self._socket.send(data[sent:])
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def _receive(self, count: int) -> bytes:
        """The next bytes."""
        awake_until_s = time.monotonic() + _AWAKE_S
        while len(self._received) < count:
            try:
                got = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                if time.monotonic() > awake_until_s:
                    self._wait(select.POLLIN)
                continue
            if not got:
                raise ConnectionResetError("the agent has closed the connection")
            self._received += self._buffer[:got]
        data = bytes(memoryview(self._received)[:count])
        del self._received[:count]
        return data

    def _wait(self, event: int) -> None:
        """Sleep until the socket is ready. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll(1000 * self._left_s())

    def _left_s(self) -> float:
        """Raises TimeoutError."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("not in time")
        return left_s
