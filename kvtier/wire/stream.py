"""Frames over a socket inside asyncio, without copies: payload is received into and sent from the caller's own memory.

Streams of asyncio would copy every payload once more. One coroutine receives; any number send, one frame at a time. A peer that
begins a frame must go on with it: each step of it has a deadline. Waiting for a frame to begin has none. Within a large payload
the kernel wakes the receiver once for many segments.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from traceback import clear_frames

from kvtier.wire.frames import HEADER_BYTES, Header, pack_frame, unpack_header

_BUFFER_BYTES = 64 << 10
_WAKE_BYTES = 1 << 20  # of a page: to be woken costs as much as to copy a few hundred KiB

Seen = Callable[[memoryview], object]


class StreamClosed(Exception):
    """The other side has gone, or stopped in the middle of a frame."""


class FrameStream:
    """Owns the socket. `stall_s` bounds every wait inside a frame, both ways."""

    def __init__(self, sock: socket.socket, stall_s: float) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._sending = asyncio.Lock()
        self._aborted = False
        self._wakes_at = 1  # bytes, as the socket was told

    async def receive(self) -> tuple[Header, bytes]:
        """The next frame's header and body; its payload must be taken before the next call.

        Raises `StreamClosed` and `FrameError`.
        """
        if self._start == self._end:
            await self._fill(None)
        while self._end - self._start < HEADER_BYTES:
            await self._fill(self._stall_s)
        header = unpack_header(self._view[self._start : self._start + HEADER_BYTES])
        self._start += HEADER_BYTES
        body = bytearray(header.body_bytes)
        await self.take_into(memoryview(body))
        return header, bytes(body)

    async def take_into(self, target: memoryview, seen: Seen | None = None) -> None:
        """Fill `target` with the bytes that come next; `seen` gets each piece of it while it is warm. Raises `StreamClosed`."""
        ready = 0
        got = min(self._end - self._start, len(target))
        target[:got] = self._view[self._start : self._start + got]
        self._start += got
        while True:
            if seen is not None:
                seen(target[ready : ready + got])
            ready += got
            if ready == len(target):
                return
            got = await self._receive_into(target[ready:], self._stall_s, min(len(target) - ready, _WAKE_BYTES))

    async def discard(self, count: int) -> None:
        """Drop the next `count` bytes. Raises `StreamClosed`."""
        while count:
            step = min(count, _BUFFER_BYTES)
            await self.take_into(memoryview(bytearray(step)))
            count -= step

    async def send(self, call: int, body: bytes, payload: Sequence[memoryview] = ()) -> None:
        """One frame. Raises `StreamClosed`."""
        async with self._sending:
            await self._send(pack_frame(call, body, sum(map(len, payload))))
            for piece in payload:
                await self._send(piece)

    def abort(self) -> None:
        """End the connection: whoever waits on it gets `StreamClosed`."""
        if not self._aborted:
            self._aborted = True
            with suppress(OSError):  # the other side was faster
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket. For the coroutine that receives, at its end: a wait on a closed socket would never end."""
        self.abort()
        self._sock.close()

    async def _fill(self, stall_s: float | None) -> None:
        """More bytes behind those in the buffer."""
        if self._start:
            self._view[: self._end - self._start] = self._view[self._start : self._end]
            self._end -= self._start
            self._start = 0
        self._end += await self._receive_into(self._view[self._end :], stall_s)

    async def _receive_into(self, target: memoryview, stall_s: float | None, wake_bytes: int = 1) -> int:
        """What is there, at least a byte; where nothing is, once `wake_bytes` have come, or fewer within `stall_s`."""
        if self._aborted:
            raise StreamClosed("closed here")
        try:
            got = await self._woken(target, stall_s, wake_bytes)
        except BlockingIOError as error:
            raise StreamClosed(f"the other side stopped in the middle of a frame for {stall_s:g} s") from error
        except OSError as error:
            raise _lost(error) from error
        if not got:
            raise StreamClosed("the other side has closed the connection")
        return got

    async def _woken(self, target: memoryview, stall_s: float | None, wake_bytes: int) -> int:
        """Raises BlockingIOError where not even a byte has come."""
        if wake_bytes != self._wakes_at:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)
            self._wakes_at = wake_bytes
        try:
            async with asyncio.timeout(stall_s):
                return await self._loop.sock_recv_into(self._sock, target)
        except TimeoutError:
            return self._sock.recv_into(target)

    async def _send(self, data: bytes | memoryview) -> None:
        if self._aborted:
            raise StreamClosed("closed here")
        try:
            async with asyncio.timeout(self._stall_s):
                await self._loop.sock_sendall(self._sock, data)
        except asyncio.CancelledError:
            self.abort()  # perhaps half a frame was sent: nothing that follows would be understood
            raise
        except TimeoutError as error:
            self.abort()
            raise StreamClosed(f"the other side took nothing for {self._stall_s:g} s") from error
        except OSError as error:
            raise _lost(error) from error


def _lost(error: OSError) -> StreamClosed:
    """Of an error that asyncio's future keeps, whose frames keep that future and the caller's memory: a circle that would hold
    the memory until garbage is collected."""
    clear_frames(error.__traceback__)
    return StreamClosed(f"connection lost: {error.strerror}")
