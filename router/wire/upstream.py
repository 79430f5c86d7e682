"""The pool of connections to engines and the one call to use it: `UpstreamPool.start`.

Hand-written because it decides the router's cost per request (an `asyncio.Protocol` with llhttp and a LIFO pool takes a quarter
of what general clients take) and because retries need to know exactly how far a request got. Refuses to know workers and
policies. A request on an idle connection is written before `start` returns and costs no task; only opening a connection does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from router.errors import ConnectFailed
from router.wire.connection import UpstreamConnection
from router.wire.deadlines import Deadlines
from router.wire.exchange import Exchange, ReplySink
from router.wire.origin import Origin

__all__ = ["Exchange", "Origin", "ReplySink", "UpstreamPool"]


class UpstreamPool:
    """Idle connections per origin, newest first. Belongs to the loop that is running at the first `start`.

    `idle_s` must be below the engine's keep-alive (uvicorn: 5 s), else requests meet connections that are just being closed.
    `max_connections` bounds open sockets over all origins: at the bound the oldest idle one makes room, else `ConnectFailed`.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 5.0,
        idle_s: float = 4.0,
        max_connections: int = 16_384,
        max_head_bytes: int = 65_536,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connect_timeout_s = connect_timeout_s
        self.idle_s = idle_s
        self.max_connections = max_connections
        self._max_head_bytes = max_head_bytes
        self._tls = tls
        self._idle: dict[Origin, list[UpstreamConnection]] = {}
        self._open: set[UpstreamConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadlines: Deadlines | None = None

    @property
    def open_connections(self) -> int:
        """Open and opening."""
        return len(self._open) + len(self._connecting)

    def idle_connections(self, origin: Origin) -> int:
        return len(self._idle.get(origin, ()))

    def start(
        self,
        origin: Origin,
        head: bytes,
        body: Sequence[bytes | memoryview],
        sink: ReplySink,
        *,
        first_byte_timeout_s: float,
        idle_timeout_s: float,
    ) -> Exchange:
        """Send one request: `head` as `build_head` makes it, then the parts of `body`, whose lengths it declares.

        Never raises for the network and never calls the sink before it has returned.
        """
        deadlines = self._deadlines
        if deadlines is None:
            deadlines = self._bind()
        exchange = Exchange(sink, deadlines, first_byte_timeout_s, idle_timeout_s)
        connection = self._take_idle(origin)
        if connection is not None:
            connection.send(exchange, head, body)
        else:
            self._connect(origin, exchange, head, body)
        return exchange

    def drop_idle(self, origin: Origin | None = None) -> None:
        """Close idle connections to one origin (a worker was removed) or to all. Busy ones finish and are pooled as usual."""
        for key in [origin] if origin is not None else list(self._idle):
            for connection in self._idle.pop(key, ()):
                connection.close()

    async def close(self) -> None:
        """Abort everything. Exchanges still running get `on_error(EngineDied)`."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._open):
            connection.shut()

    def _bind(self) -> Deadlines:
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        return self._deadlines

    # idle connections

    def _take_idle(self, origin: Origin) -> UpstreamConnection | None:
        idle = self._idle.get(origin)
        if not idle:
            return None
        assert self._loop is not None
        oldest_s = self._loop.time() - self.idle_s
        while idle:
            connection = idle.pop()
            if connection.usable:
                if connection.idle_since_s > oldest_s:
                    return connection
                connection.close()
        return None

    def release(self, connection: UpstreamConnection) -> None:
        assert self._loop is not None
        connection.idle_since_s = self._loop.time()
        idle = self._idle.get(connection.origin)
        if idle is None:
            self._idle[connection.origin] = [connection]
        else:
            idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self.idle_s / 4, self._close_idle)

    def forget(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def _close_idle(self) -> None:
        """Every quarter of `idle_s`: no connection stays in the pool beyond 1.25 times that, used or not."""
        assert self._loop is not None
        oldest_s = self._loop.time() - self.idle_s
        for origin, idle in list(self._idle.items()):
            fresh = next((i for i, c in enumerate(idle) if c.idle_since_s > oldest_s), len(idle))
            for connection in idle[:fresh]:
                connection.close()
            del idle[:fresh]
            if not idle:
                del self._idle[origin]
        self._sweep = self._loop.call_later(self.idle_s / 4, self._close_idle) if self._idle else None

    # new connections

    def _connect(self, origin: Origin, exchange: Exchange, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        assert self._loop is not None
        if self.open_connections >= self.max_connections and not self._evict():
            error = ConnectFailed(f"all {self.max_connections} connections to engines are in use (max_connections)")
            self._loop.call_soon(exchange.fail, error)
            return
        task = self._loop.create_task(self._open_and_send(origin, exchange, head, body))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        exchange.attach(_Connecting(task))

    def _evict(self) -> bool:
        oldest = min((idle[0] for idle in self._idle.values() if idle), key=lambda c: c.idle_since_s, default=None)
        if oldest is None:
            return False
        self._idle[oldest.origin].remove(oldest)
        self._open.discard(oldest)
        oldest.close()
        return True

    async def _open_and_send(self, origin: Origin, exchange: Exchange, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        assert self._loop is not None
        loop = self._loop
        tls = self._tls_context() if origin.tls else None
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self, origin, loop, self._max_head_bytes), origin.host, origin.port, ssl=tls
                )
        except TimeoutError:
            exchange.fail(ConnectFailed(f"no connection to {origin} within {self.connect_timeout_s:g} s"))
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name, a certificate for another
            exchange.fail(ConnectFailed(f"no connection to {origin}: {error}"))
        else:
            self._open.add(connection)
            if not connection.usable:
                self._open.discard(connection)
                exchange.fail(ConnectFailed(f"{origin} closed the connection at once"))
            elif exchange.done:
                connection.close()
            else:
                connection.send(exchange, head, body)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


class _Connecting:
    """Carries an exchange until its connection is open."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def drop(self) -> None:
        self._task.cancel()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
