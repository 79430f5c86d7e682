"""An engine's connection on this host: one request after the other, answered in the callback that has read it.

Coroutines and streams would cost several times as much CPU a request, beside engines whose copies use every core. Page bytes
never come this way: engines have the memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from contextlib import suppress

from kvtier.agent.connection import Connection, ConnectionCounters
from kvtier.agent.desk import Answer, Desk
from kvtier.agent.owner import Owner
from kvtier.wire.frames import HEADER_BYTES, FrameError, Header, pack_frame, unpack_header
from kvtier.wire.messages import Refused, decode_request, encode
from kvtier.wire.stream import StreamClosed

_RECEIVE_BYTES = 128 << 10  # a request about two thousand pages at once


class LocalConnection(Connection):
    """Owns the socket. A client that moves no byte in the middle of a frame, either way, is left after `stall_s`.

    Nothing is read while an answer waits, or cannot be sent: so nothing piles up.
    """

    def __init__(self, desk: Desk, sock: socket.socket, counters: ConnectionCounters, stall_s: float) -> None:
        super().__init__(desk, counters)
        sock.setblocking(False)
        self._sock = sock
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._received = bytearray()
        self._unsent = b""
        self._waiting: asyncio.Task[None] | None = None
        self._stalling: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        self._end(StreamClosed("closed here"))

    def _close(self) -> None:
        self._sock.close()

    async def _serve(self, owner: Owner) -> None:
        self._loop.add_reader(self._sock, self._readable, owner)
        try:
            await self._ended
        finally:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._watch(in_frame=False)
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.gather(self._waiting, return_exceptions=True)

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _readable(self, owner: Owner) -> None:
        try:
            with suppress(BlockingIOError):
                self._receive()
            self._answer_all(owner)
        except Exception as error:  # noqa: BLE001 - the root of this callback: `run` logs and counts it
            self._end(error)

    def _writable(self, owner: Owner) -> None:
        try:
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self._send_some(self._unsent) :]
            self._watch(in_frame=True)
            if not self._unsent:
                self._loop.remove_writer(self._sock)
                self._go_on(owner)
        except Exception as error:  # noqa: BLE001 - the root of this callback: `run` logs and counts it
            self._end(error)

    def _receive(self) -> None:
        try:
            got = self._sock.recv_into(self._buffer)
        except ConnectionError as error:
            raise StreamClosed(f"connection lost: {error.strerror}") from error
        if not got:
            raise StreamClosed("the other side has closed the connection")
        self._received += self._buffer[:got]

    def _send_some(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except ConnectionError as error:
            raise StreamClosed(f"connection lost: {error.strerror}") from error

    def _answer_all(self, owner: Owner) -> None:
        """Every request that is there as a whole."""
        while not self._unsent and self._waiting is None and (frame := self._next_frame()) is not None:
            header, body = frame
            request = decode_request(body)
            self._counters.requests += 1
            answer = self._desk.answer(owner, request)
            if isinstance(answer, Answer):
                self._send(owner, header.call, answer)
            else:
                self._loop.remove_reader(self._sock)
                self._waiting = self._loop.create_task(self._answer_later(owner, header.call, answer))
        self._watch(in_frame=bool(self._unsent) or (self._waiting is None and bool(self._received)))

    def _next_frame(self) -> tuple[Header, bytes] | None:
        if len(self._received) < HEADER_BYTES:
            return None
        header = unpack_header(self._received[:HEADER_BYTES])
        if header.payload_bytes:
            raise FrameError("an engine on this host sends no payload: it has the memory")
        end = HEADER_BYTES + header.body_bytes
        if len(self._received) < end:
            return None
        body = bytes(memoryview(self._received)[HEADER_BYTES:end])
        del self._received[:end]
        return header, body

    async def _answer_later(self, owner: Owner, call: int, waiting: Awaitable[Answer]) -> None:
        try:
            self._send(owner, call, await waiting)
            self._waiting = None
            self._watch(in_frame=bool(self._unsent))
            if not self._unsent:
                self._go_on(owner)
        except Exception as error:  # noqa: BLE001 - the root of this task: `run` logs and counts it
            self._end(error)

    def _go_on(self, owner: Owner) -> None:
        """What has come meanwhile first."""
        self._answer_all(owner)
        if not self._unsent and self._waiting is None:
            self._loop.add_reader(self._sock, self._readable, owner)

    def _send(self, owner: Owner, call: int, answer: Answer) -> None:
        reply = Refused("pages are read from shared memory here") if answer.payload else answer.reply
        self._desk.finished(answer)
        try:
            frame = pack_frame(call, encode(reply))
        except FrameError as error:
            frame = pack_frame(call, encode(Refused(str(error))))
        with suppress(BlockingIOError):
            frame = frame[self._send_some(frame) :]
        self._unsent = frame
        if frame:
            self._loop.remove_reader(self._sock)
            self._loop.add_writer(self._sock, self._writable, owner)

    def _watch(self, *, in_frame: bool) -> None:
        """Something has moved; within a frame more must follow in time."""
        if self._stalling is not None:
            self._stalling.cancel()
        self._stalling = self._loop.call_later(self._stall_s, self._stalled) if in_frame else None

    def _stalled(self) -> None:
        self._end(StreamClosed(f"the other side stopped in the middle of a frame for {self._stall_s:g} s"))
