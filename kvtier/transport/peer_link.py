"""One TCP connection to another agent: calls under way side by side, each with a deadline, replies in any order.

Page bytes are received straight into the caller's memory and hashed as they come. A caller that gives up gets its memory back
untouched from then on: if its payload is just arriving the whole connection is ended, which is what a peer that slow deserves.
A reply that nobody waits for (late, doubled, made up) is dropped and counted.

A peer may be slow with one answer and not with all: where calls are given up for a while and nothing is heard meanwhile, the
connection is ended. It may have lost its place between two frames, and take every later reply for the rest of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvtier.page.checksum import growing_checksum
from kvtier.page.space import PageSpace
from kvtier.wire.frames import FrameError, Header
from kvtier.wire.messages import (
    MAX_SPACES,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Done,
    Greeting,
    MessageError,
    PagesSent,
    ReadPages,
    Refused,
    Reply,
    Request,
    decode_reply,
    encode,
)
from kvtier.wire.stream import FrameStream, StreamClosed

log = logging.getLogger(__name__)

_MAX_CALL = (1 << 32) - 1


class PeerUnavailable(Exception):
    """The peer cannot be reached, has gone, or did not answer in time. It may be back: never a miss."""


class PeerRefused(Exception):
    """The peer says the request makes no sense, or answers with something that makes none."""


class LinkCounters(msgspec.Struct):
    """Of all links of a node, past and present."""

    links_opened: int = 0
    links_failed: int = 0
    links_mute: int = 0  # ended, because nothing that was asked was answered
    link_crashes: int = 0  # faults of our own; should stay 0
    calls: int = 0
    calls_late: int = 0
    replies_unasked: int = 0
    received_bytes: int = 0


class _Answer(NamedTuple):
    reply: Reply
    checksums: list[bytes]  # of the pages that came with it


class _Call:
    __slots__ = ("answer", "asked_s", "filling", "targets")

    def __init__(self, targets: Sequence[memoryview]) -> None:
        self.answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.asked_s = 0.0
        self.targets = targets
        self.filling = False


class PeerLink:
    """`run` must be running for anything to be answered; it ends with the connection. `mute_s`: how long calls may be given up
    without anything being heard."""

    def __init__(self, stream: FrameStream, counters: LinkCounters, max_calls: int, mute_s: float) -> None:
        self.greeting: Greeting | None = None
        self.idle_since_s = self._heard_s = asyncio.get_running_loop().time()
        self._mute_s = mute_s
        self._mute_since_s: float | None = None
        self._stream = stream
        self._counters = counters
        self._calls: dict[int, _Call] = {}
        self._last_call = 0
        self._slots = asyncio.Semaphore(max_calls)
        self._spaces: dict[PageSpace, int] = {}
        self._ended = asyncio.Event()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def worn(self) -> bool:
        """Whether it has named as many spaces as leave room for those who hold it: others had better have a new one."""
        return len(self._spaces) >= MAX_SPACES // 2

    async def greet(self, node: str, deadline_s: float) -> Greeting:
        """The peer's greeting, the first thing it says; before `run`. Raises `PeerUnavailable`, also for another node."""
        try:
            async with asyncio.timeout(deadline_s):
                header, body = await self._stream.receive()
            reply = decode_reply(body)
        except (TimeoutError, StreamClosed, FrameError, MessageError) as error:
            raise PeerUnavailable(f"no greeting: {str(error) or f'timed out after {deadline_s:g} s'}") from error
        if not isinstance(reply, Greeting) or header.payload_bytes:
            raise PeerUnavailable("no greeting")
        if reply.version != PROTOCOL_VERSION:
            who = f"{reply.node} speaks protocol {reply.version}"
            raise PeerUnavailable(f"{who}, and here it is {PROTOCOL_VERSION}: let both be of one version of loadback")
        if reply.node != node:
            raise PeerUnavailable(f"the agent there is {reply.node}, not {node}")
        self.greeting = reply
        return reply

    async def run(self) -> None:
        """Take replies until the connection ends, then fail whoever still waits."""
        why = "the connection was ended here"
        try:
            while True:
                await self._take_reply(*await self._stream.receive())
                self._hear()
        except (StreamClosed, FrameError, MessageError) as error:
            why = str(error)
        except Exception:
            self._counters.link_crashes += 1
            log.exception("a link failed")
        finally:
            self._ended.set()
            self._stream.close()
            for call in self._calls.values():
                call.filling = False
                if not call.answer.done():
                    call.answer.set_exception(PeerUnavailable(why))
                    call.answer.exception()  # whoever gave up is not to be told off

    def abort(self) -> None:
        """End the connection; `run` returns soon."""
        self._stream.abort()

    async def call(self, request: Request, deadline_s: float) -> Reply:
        """Raises `PeerUnavailable` and `PeerRefused`."""
        reply, _ = await self._ask(request, (), deadline_s)
        if isinstance(reply, Refused):
            raise PeerRefused(reply.reason)
        return reply

    async def attach(self, space: PageSpace, deadline_s: float) -> int:
        """The number of a space on this connection."""
        number = self._spaces.get(space)
        if number is None:
            reply = await self.call(Attach(space), deadline_s)
            if not isinstance(reply, Attached):
                raise PeerRefused(f"{type(reply).__name__} is no answer to Attach")
            number = self._spaces[space] = reply.space
        return number

    async def read(self, lease: int, first: int, targets: Sequence[memoryview], deadline_s: float) -> list[bytes] | None:
        """Fill `targets` with the pages of a lease from `first` on; their checksums, or None where the lease has ended.

        On any exception, and on None, the targets hold anything; nobody writes to them any more.
        """
        reply, checksums = await self._ask(ReadPages(lease, first, len(targets)), targets, deadline_s)
        if isinstance(reply, PagesSent):
            return checksums
        if isinstance(reply, Done):
            return None
        raise PeerRefused(reply.reason if isinstance(reply, Refused) else f"{type(reply).__name__} is no answer to ReadPages")

    async def _ask(self, request: Request, targets: Sequence[memoryview], deadline_s: float) -> _Answer:
        call = _Call(targets)
        number = 0
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                number = self._next_number()
                self._calls[number] = call
                self._counters.calls += 1
                call.asked_s = asyncio.get_running_loop().time()
                if self._ended.is_set():
                    raise PeerUnavailable("the connection has ended")
                await self._stream.send(number, encode(request))
                return await call.answer
        except TimeoutError as error:
            self._counters.calls_late += 1
            raise PeerUnavailable(f"no answer to {type(request).__name__} within {deadline_s:g} s") from error
        except StreamClosed as error:
            raise PeerUnavailable(str(error)) from error
        finally:
            self._calls.pop(number, None)
            self.idle_since_s = asyncio.get_running_loop().time()
            if call.answer.cancelled():
                self._miss(call.asked_s)
            if call.filling:
                self._stream.abort()
                await self._ended.wait()
            del call  # an error's traceback would keep it, and it the error, and both the targets

    def _hear(self) -> None:
        """Something whole, and expected, has come."""
        self._heard_s = asyncio.get_running_loop().time()
        self._mute_since_s = None

    def _miss(self, asked_s: float) -> None:
        """A call was given up."""
        if self._heard_s >= asked_s:
            return
        if self._mute_since_s is None:
            self._mute_since_s = self.idle_since_s
        elif self.alive and self.idle_since_s - self._mute_since_s >= self._mute_s:
            self._counters.links_mute += 1
            self.abort()

    async def _take_reply(self, header: Header, body: bytes) -> None:
        call = self._calls.get(header.call)
        reply = decode_reply(body)
        if call is None or call.answer.done():
            self._counters.replies_unasked += 1
            await self._stream.discard(header.payload_bytes)
            return
        checksums: list[bytes] = []
        if isinstance(reply, PagesSent):
            checksums = await self._fill(call, reply, header.payload_bytes)
        elif header.payload_bytes:
            raise FrameError(f"a {type(reply).__name__} with {header.payload_bytes} bytes behind it")
        if not call.answer.done():
            call.answer.set_result(_Answer(reply, checksums))

    async def _fill(self, call: _Call, reply: PagesSent, payload_bytes: int) -> list[bytes]:
        if reply.lengths != [len(target) for target in call.targets] or sum(reply.lengths) != payload_bytes:
            raise FrameError("pages of other lengths than were asked for")
        call.filling = True
        checksums = []
        try:
            for target in call.targets:
                checksum = growing_checksum()
                await self._stream.take_into(target, checksum.update)
                checksums.append(checksum.digest())
                self._hear()
                self._counters.received_bytes += len(target)
        finally:
            call.filling = False
        return checksums

    def _next_number(self) -> int:
        """Not one that is under way."""
        number = self._last_call
        while True:
            number = number % _MAX_CALL + 1
            if number not in self._calls:
                self._last_call = number
                return number
