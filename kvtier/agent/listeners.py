"""Where clients come in: TCP for peers, and a Unix socket for engines on this host, whose greeting brings the memory file."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
from pathlib import Path

import msgspec

from kvtier.agent.connection import Connection, ConnectionCounters
from kvtier.agent.desk import Desk
from kvtier.agent.local_connection import LocalConnection
from kvtier.agent.peer_connection import PeerConnection
from kvtier.agent.places import CannotStart, socket_fault
from kvtier.settings.address import bound
from kvtier.settings.ranges import Count, PauseMs
from kvtier.transport.links import tune
from kvtier.wire.frames import GREETING_CALL, pack_frame
from kvtier.wire.messages import Greeting, encode
from kvtier.wire.stream import FrameStream

log = logging.getLogger(__name__)

_BACKLOG = 128
_ACCEPT_PAUSE_S = 0.1


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_connections: Count = 1024
    max_requests: Count = 64  # under way on one peer's connection; engines' connections ask one thing at a time
    stall_ms: PauseMs = 5000  # a client that moves no byte in the middle of a frame


class Listeners:
    """All ways in. `close` must be awaited; it ends every connection."""

    def __init__(self, desk: Desk, greeting: Greeting, memory_fd: int, settings: ServeSettings) -> None:
        self.counters = ConnectionCounters()
        self._desk = desk
        self._greeting = pack_frame(GREETING_CALL, encode(greeting))
        self._memory_fd = memory_fd
        self._settings = settings
        self._accepting: dict[asyncio.Task[None], socket.socket] = {}
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._lock_fds: list[int] = []
        self._paths: list[Path] = []

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def listen_unix(self, path: Path) -> None:
        """For engines on this host. Raises `CannotStart`; what is no socket is never removed."""
        try:
            listener = self._bind_unix(path)
        except BlockingIOError as error:
            raise CannotStart(f"socket: another agent listens at {path}") from error
        except OSError as error:
            raise CannotStart(f"socket: {error.filename or path}: {error.strerror or error}") from error
        self._paths.append(path)
        self._accept_on(listener, local=True)

    def _bind_unix(self, path: Path) -> socket.socket:
        if fault := socket_fault(path):
            raise CannotStart(f"socket: {fault}")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock_fds.append(lock_fd)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)  # an agent that was killed left it behind
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
        except OSError:
            listener.close()
            raise
        return listener

    def listen_tcp(self, host: str, port: int) -> int:
        """For other agents; the port, chosen by the system for 0. Raises `AddressTaken`."""
        listener = bound("listen", host, port)
        self._accept_on(listener, local=False)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener in self._accepting.values():
            listener.close()
        for connection in self._connections.values():
            connection.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for path in self._paths:
            if path.is_socket():
                path.unlink(missing_ok=True)
        for fd in self._lock_fds:
            os.close(fd)

    def _accept_on(self, listener: socket.socket, *, local: bool) -> None:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._accepting[asyncio.get_running_loop().create_task(self._accept(listener, local))] = listener

    async def _accept(self, listener: socket.socket, local: bool) -> None:
        while True:
            try:
                sock, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # no descriptors left, or the client was gone already
                log.warning("accepting failed: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._welcome(sock, local)

    def _welcome(self, sock: socket.socket, local: bool) -> None:
        if len(self._connections) >= self._settings.max_connections:
            self.counters.connections_refused += 1
            sock.close()
            return
        try:
            if local:
                socket.send_fds(sock, [self._greeting], [self._memory_fd])
            else:
                tune(sock)
                sock.send(self._greeting)  # a fresh socket takes a greeting whole
        except OSError as error:
            log.debug("a client left before it was greeted: %s", error)
            sock.close()
            return
        connection = self._local(sock) if local else self._of_peer(sock)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._connections[task] = connection
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    def _local(self, sock: socket.socket) -> Connection:
        return LocalConnection(self._desk, sock, self.counters, self._settings.stall_ms / 1000)

    def _of_peer(self, sock: socket.socket) -> Connection:
        stream = FrameStream(sock, self._settings.stall_ms / 1000)
        return PeerConnection(self._desk, stream, self.counters, self._settings.max_requests)
