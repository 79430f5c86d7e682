"""What an engine asks of its node's agent: how much of a prompt is there, bring it, keep it.

Blocking calls with deadlines, from any of the engine's threads; whatever goes wrong is a miss, never an exception. Bytes are
checked where the engine will use them, after they were copied: a page that fails is not served, and the agent is told to look
for itself. An agent that is away costs nothing for a while, then it is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kvtier.client.channel import AgentRefused, AgentUnavailable
from kvtier.client.copier import Copier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.meetings import Meeting, Meetings
from kvtier.client.memory import SharedMemory
from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.wire.messages import (
    Acquire,
    Acquired,
    Clear,
    Commit,
    Done,
    Look,
    Looked,
    Release,
    Report,
    Request,
    Reserve,
    Reserved,
    Statuses,
)

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_CHUNK_PAGES = 256  # that are asked for together: the agent looks for the next ones while these are copied
_NEEDS_NO_WRITING = (Status.EXISTS, Status.WRITING)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the engine may wait, in seconds: each operation as a whole, but for its own copying."""

    connect_s: float = 0.2
    look_s: float = 0.1
    get_s: float = 2.0
    put_s: float = 2.0
    lease_s: float = 5.0
    retry_s: float = 1.0  # an agent that failed is left alone for so long


class ClientCounters(msgspec.Struct):
    """Approximate: several threads count."""

    pages_got: int = 0
    pages_put: int = 0
    pages_there: int = 0  # puts that needed no writing
    pages_corrupt: int = 0
    failures: int = 0


class PageClient:
    """Pages of one space. `digests` are joined, DIGEST_BYTES each. For several threads; owns its `copier`."""

    def __init__(
        self,
        socket_path: Path,
        space: PageSpace,
        copier: Copier,
        settings: ClientSettings,
        worker: str = "",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = ClientCounters()
        self._meetings = Meetings(socket_path, space, settings.connect_s, settings.retry_s, clock_s)
        self._copier = copier
        self._settings = settings
        self._worker = worker
        self._clock_s = clock_s

    def look(self, digests: bytes, ssd_pages: int = 0) -> int:
        """Pages of the leading run that can be had: in DRAM, and behind it up to `ssd_pages` that are on SSD alone."""
        leading = 0

        def ask(call: _Call) -> None:
            nonlocal leading
            found = call.ask(Look(call.space, digests, self._worker), Looked)
            leading = min(found.local, found.dram + ssd_pages)

        self._with_agent(ask, self._settings.look_s)
        return leading

    def get(self, digests: bytes, pages: EnginePages) -> list[bool]:
        """Fill the pieces of each page; whether it is whole there now. What is not holds anything."""
        whole = [False] * len(pages)
        self._with_agent(lambda call: self._get(call, digests, pages, whole), self._settings.get_s)
        self.counters.pages_got += sum(whole)
        return whole

    def put(self, digests: bytes, pages: EnginePages, depth: int = 0) -> list[bool]:
        """Store pages `depth`, `depth` + 1, ... of a prompt; whether each is stored, or is being stored by someone else."""
        stored = [False] * len(pages)
        self._with_agent(lambda call: self._put(call, digests, pages, depth, stored), self._settings.put_s)
        return stored

    def clear(self) -> bool:
        """Forget all pages of the space; whether the agent did."""
        return self._with_agent(lambda call: call.ask(Clear(call.space), Done), self._settings.put_s)

    def warm(self, deadline_s: float) -> bool:
        """Meet the agent and wait until its memory is mapped here; whether it is."""
        memories: list[SharedMemory] = []
        self._with_agent(lambda call: memories.append(call.memory), deadline_s)
        return all(memory.populated.wait(deadline_s) for memory in memories) and bool(memories)

    def close(self) -> None:
        self._meetings.close()
        self._copier.close()

    def _get(self, call: _Call, digests: bytes, pages: EnginePages, whole: list[bool]) -> None:
        chunks = _chunks(len(pages))
        requests = (
            Acquire(call.space, _digests(digests, chunk), 1000 * self._settings.lease_s, 500 * call.left_s) for chunk in chunks
        )
        corrupt: list[tuple[int, int]] = []
        for chunk, acquired in zip(chunks, call.ahead(requests, Acquired), strict=True):
            found = _found(acquired, chunk.stop - chunk.start, pages.page_bytes)
            checksums = self._copier.get(call.memory, acquired.offsets, pages.part(chunk).chosen(found))
            call.tell(Release(acquired.lease))
            wrong = _differing(checksums, acquired.checksums)
            for number in found if not wrong else (found[each] for each in range(len(found)) if each not in wrong):
                whole[chunk.start + number] = True
            corrupt += [(chunk.start + found[each], acquired.generations[each]) for each in sorted(wrong)]
        for index, generation in corrupt:
            self._report(call, digests, index, generation)

    def _report(self, call: _Call, digests: bytes, index: int, generation: int) -> None:
        self.counters.pages_corrupt += 1
        digest = _digests(digests, slice(index, index + 1))
        log.warning("page %s failed its checksum and is not used", digest.hex())
        call.ask(Report(call.space, digest, generation), Done)

    def _put(self, call: _Call, digests: bytes, pages: EnginePages, depth: int, stored: list[bool]) -> None:
        chunks = _chunks(len(pages))
        requests = (
            Reserve(call.space, _digests(digests, chunk), [pages.page_bytes] * (chunk.stop - chunk.start), depth + chunk.start)
            for chunk in chunks
        )
        before: _Committing | None = None
        for chunk, reserved in zip(chunks, call.ahead(requests, Reserved), strict=True):
            claimed = self._claimed(reserved, chunk, stored)
            checksums = self._copier.put(call.memory, reserved.offsets, pages.part(chunk).chosen(claimed))
            self._committed(call, before, stored)
            number = call.send(Commit(reserved.writes, checksums))
            before = _Committing(number, [chunk.start + each for each in claimed])
        self._committed(call, before, stored)

    def _claimed(self, reserved: Reserved, chunk: slice, stored: list[bool]) -> Sequence[int]:
        """Pages of the chunk to be written now."""
        statuses = reserved.statuses
        _check(len(statuses), len(stored[chunk]))
        claimed = _numbers_ok(statuses)
        _check(len(reserved.offsets), len(claimed))
        if len(claimed) < len(statuses):
            stored[chunk] = [status in _NEEDS_NO_WRITING for status in statuses]
            self.counters.pages_there += sum(stored[chunk])
        return claimed

    def _committed(self, call: _Call, committing: _Committing | None, stored: list[bool]) -> None:
        if committing is None:
            return
        statuses = call.receive(committing.call, Statuses).statuses
        _check(len(statuses), len(committing.pages))
        for index, status in zip(committing.pages, statuses, strict=True):
            stored[index] = status == Status.OK
        self.counters.pages_put += statuses.count(Status.OK)

    def _with_agent(self, work: Callable[[_Call], object], deadline_s: float) -> bool:
        """Whether all of it was done; what was done before something failed stays done."""
        until_s = time.monotonic() + deadline_s
        met: Meeting | None = None
        try:
            met = self._meetings.take(deadline_s)
            work(_Call(met, until_s))
        except AgentRefused as error:
            self.counters.failures += 1
            log.warning("the agent refused: %s", error)
            if met is not None:
                met.channel.close()  # and with it what it holds
            return False
        except (AgentUnavailable, ValueError) as error:  # ValueError: an agent that talks nonsense
            self.counters.failures += 1
            log.log(logging.DEBUG if met is None else logging.WARNING, "no KV from the agent: %s", error)
            self._meetings.failed(met)
            return False
        self._meetings.give_back(met)
        return True


class _Call:
    """One meeting for one operation, all of which has one deadline."""

    def __init__(self, met: Meeting, until_s: float) -> None:
        self.space = met.space
        self.memory = met.memory
        self._channel = met.channel
        self._until_s = until_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def ask(self, request: Request, answer: type[_Answer]) -> _Answer:
        """Raises `AgentUnavailable`, also for what is no answer to `request`, and `AgentRefused`."""
        return self.receive(self.send(request), answer)

    def send(self, request: Request) -> int:
        """Ask, and go on. Answers must be received in the order in which was asked; one that is passed over is lost."""
        return self._channel.send(request, self.left_s)

    def receive(self, number: int, answer: type[_Answer]) -> _Answer:
        reply = self._channel.receive(number, self.left_s)
        if not isinstance(reply, answer):
            raise AgentUnavailable(f"{type(reply).__name__} is not the {answer.__name__} that was asked for")
        return reply

    def tell(self, request: Request) -> None:
        """What needs no answer: it is passed over."""
        self.send(request)

    def ahead(self, requests: Iterable[Request], answer: type[_Answer]) -> Iterator[_Answer]:
        """The answers one by one; while the caller is busy with one, the next has been asked for."""
        asked = 0
        for request in requests:
            found = self.receive(asked, answer) if asked else None
            asked = self.send(request)
            if found is not None:
                yield found
        if asked:
            yield self.receive(asked, answer)


class _Committing(NamedTuple):
    """A commit that was not answered yet."""

    call: int
    pages: Sequence[int]


def _chunks(pages: int) -> list[slice]:
    return [slice(start, min(start + _CHUNK_PAGES, pages)) for start in range(0, pages, _CHUNK_PAGES)]


def _digests(digests: bytes, chunk: slice) -> bytes:
    return digests[chunk.start * DIGEST_BYTES : chunk.stop * DIGEST_BYTES]


def _found(acquired: Acquired, pages: int, page_bytes: int) -> Sequence[int]:
    """Which of the asked pages are leased. Raises `AgentRefused` where they are stored in other lengths."""
    _check(len(acquired.statuses), pages)
    found = _numbers_ok(acquired.statuses)
    for column in (len(acquired.offsets), len(acquired.generations), len(acquired.checksums) // CHECKSUM_BYTES):
        _check(column, len(found))
    if acquired.lengths != [page_bytes] * len(found):
        raise AgentRefused(f"pages of {set(acquired.lengths)} bytes are stored in this space, not of {page_bytes}")
    return found


def _numbers_ok(statuses: bytes) -> Sequence[int]:
    if not any(statuses):  # all OK, as they mostly are
        return range(len(statuses))
    return [number for number, status in enumerate(statuses) if status == Status.OK]


def _differing(checksums: bytes, wanted: bytes) -> set[int]:
    if checksums == wanted:
        return set()
    pairs = (slice(start, start + CHECKSUM_BYTES) for start in range(0, len(wanted), CHECKSUM_BYTES))
    return {number for number, pair in enumerate(pairs) if checksums[pair] != wanted[pair]}


def _check(found: int, pages: int) -> None:
    if found != pages:
        raise AgentUnavailable(f"an answer about {found} pages to a question about {pages}")
