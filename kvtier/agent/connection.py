"""One client's connection: requests in, answers out, side by side up to a limit; its end gives back all it held.

A request beyond the limit is not read from the socket before another has been answered. Answers may overtake each other.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from kvtier.agent.desk import Desk
from kvtier.agent.owner import Owner
from kvtier.wire.frames import FrameError
from kvtier.wire.messages import MessageError, Refused, Request, decode_request, encode
from kvtier.wire.stream import FrameStream, StreamClosed

log = logging.getLogger(__name__)


class ConnectionCounters(msgspec.Struct):
    """Of all connections of an agent, past and present."""

    connections: int = 0
    connections_refused: int = 0
    requests: int = 0
    sent_bytes: int = 0  # of pages
    broken_frames: int = 0
    crashes: int = 0  # faults of our own; should stay 0


class Connection:
    """`run` is the connection's task."""

    def __init__(self, desk: Desk, stream: FrameStream, counters: ConnectionCounters, max_requests: int) -> None:
        self._desk = desk
        self._stream = stream
        self._counters = counters
        self._slots = asyncio.Semaphore(max_requests)
        self._max_requests = max_requests

    def abort(self) -> None:
        self._stream.abort()

    async def run(self) -> None:
        """Until the client goes, breaks the protocol, or `abort`."""
        owner = self._desk.enter()
        self._counters.connections += 1
        try:
            await self._serve(owner)
        except StreamClosed as error:
            log.debug("connection %d: %s", owner.number, error)
        except (FrameError, MessageError) as error:
            self._counters.broken_frames += 1
            log.warning("connection %d broke the protocol: %s", owner.number, error)
        except Exception:
            self._counters.crashes += 1
            log.exception("connection %d failed", owner.number)
        finally:
            self._desk.leave(owner)
            self._stream.close()

    async def _serve(self, owner: Owner) -> None:
        answering: set[asyncio.Task[None]] = set()
        try:
            while True:
                header, body = await self._stream.receive()
                await self._stream.discard(header.payload_bytes)
                request = decode_request(body)
                self._counters.requests += 1
                await self._slots.acquire()
                if self._max_requests == 1:
                    await self._answer(owner, header.call, request)
                    continue
                task = asyncio.get_running_loop().create_task(self._answer(owner, header.call, request))
                answering.add(task)
                task.add_done_callback(answering.discard)
        finally:
            self._stream.abort()
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    async def _answer(self, owner: Owner, call: int, request: Request) -> None:
        try:
            answer = await self._desk.answer(owner, request)
            try:
                await self._stream.send(call, encode(answer.reply), answer.payload)
                self._counters.sent_bytes += sum(map(len, answer.payload))
            except FrameError as error:
                await self._stream.send(call, encode(Refused(str(error))))
            finally:
                self._desk.finished(answer)
        finally:
            self._slots.release()
