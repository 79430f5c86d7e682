"""Another agent's connection: answers side by side up to a limit, and the bytes of pages.

A request beyond the limit is not read from the socket before another has been answered. Answers may overtake each other.
"""

from __future__ import annotations

import asyncio
import logging

from kvtier.agent.connection import Connection, ConnectionCounters
from kvtier.agent.desk import Answer, Desk
from kvtier.agent.owner import Owner
from kvtier.wire.frames import FrameError
from kvtier.wire.messages import Refused, Request, decode_request, encode
from kvtier.wire.stream import FrameStream, StreamClosed

log = logging.getLogger(__name__)


class PeerConnection(Connection):
    def __init__(self, desk: Desk, stream: FrameStream, counters: ConnectionCounters, max_requests: int) -> None:
        super().__init__(desk, counters)
        self._stream = stream
        self._slots = asyncio.Semaphore(max_requests)

    def abort(self) -> None:
        self._stream.abort()

    def _close(self) -> None:
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
            answer = self._desk.answer(owner, request)
            if not isinstance(answer, Answer):
                answer = await answer
            try:
                await self._send(call, answer)
            finally:
                self._desk.finished(answer)
        except StreamClosed as error:
            log.debug("connection %d: %s", owner.number, error)
        except Exception:
            self._counters.crashes += 1
            log.exception("answering on connection %d failed", owner.number)
            self._stream.abort()  # who asked would wait for ever
        finally:
            self._slots.release()

    async def _send(self, call: int, answer: Answer) -> None:
        try:
            await self._stream.send(call, encode(answer.reply), answer.payload)
            self._counters.sent_bytes += sum(map(len, answer.payload))
        except FrameError as error:
            await self._stream.send(call, encode(Refused(str(error))))
