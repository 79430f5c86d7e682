"""What an engine asks of its node's agent: how much of a prompt is there, bring it, keep it.

Blocking calls with deadlines, from any of the engine's threads; whatever goes wrong is a miss, never an exception. Bytes are
checked where the engine will use them, after they were copied: a page that fails is not served, and the agent is told to look
for itself. An agent that is away costs nothing for a while, then it is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from kvtier.client.channel import AgentRefused, AgentUnavailable
from kvtier.client.copier import Copier, Piece, StoredPage
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
    Renew,
    Report,
    Request,
    Reserve,
    Reserved,
    Statuses,
)

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_CHUNK_PAGES = 256
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

    def get(self, digests: bytes, pages: Sequence[Sequence[Piece]]) -> list[bool]:
        """Fill the pieces of each page; whether it is whole there now. What is not holds anything."""
        whole = [False] * len(pages)
        self._with_agent(lambda call: self._get(call, digests, pages, whole), self._settings.get_s)
        self.counters.pages_got += sum(whole)
        return whole

    def put(self, digests: bytes, pages: Sequence[Sequence[Piece]], depth: int = 0) -> list[bool]:
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

    def _get(self, call: _Call, digests: bytes, pages: Sequence[Sequence[Piece]], whole: list[bool]) -> None:
        acquired = call.ask(Acquire(call.space, digests, 1000 * self._settings.lease_s, 500 * call.left_s), Acquired)
        _check(len(acquired.statuses), len(pages))
        found = [index for index, status in enumerate(acquired.statuses) if status == Status.OK]
        stored = [StoredPage(offset, pages[index]) for offset, index in zip(acquired.offsets, found, strict=True)]
        lengths = [page.length for page in stored]
        if lengths != acquired.lengths:
            raise AgentRefused(f"pages of {set(acquired.lengths)} bytes are stored in this space, not of {set(lengths)}")
        for start in range(0, len(stored), _CHUNK_PAGES):
            chunk = slice(start, start + _CHUNK_PAGES)
            for number, checksum in enumerate(self._copier.get(call.memory, stored[chunk]), start):
                if checksum == acquired.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]:
                    whole[found[number]] = True
                else:
                    self._report(call, digests, found[number], acquired.generations[number])
            if not self._keep(call, acquired.lease, more=chunk.stop < len(stored)):
                return

    def _report(self, call: _Call, digests: bytes, index: int, generation: int) -> None:
        self.counters.pages_corrupt += 1
        digest = digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        log.warning("page %s failed its checksum and is not used", digest.hex())
        call.ask(Report(call.space, digest, generation), Done)

    def _keep(self, call: _Call, lease: int, *, more: bool) -> bool:
        """Renew the lease if there is more to copy under it, else release it; False where it has ended."""
        if more:
            return call.ask(Renew(lease, 1000 * self._settings.lease_s), Done).status is Status.OK
        call.ask(Release(lease), Done)
        return True

    def _put(self, call: _Call, digests: bytes, pages: Sequence[Sequence[Piece]], depth: int, stored: list[bool]) -> None:
        lengths = [sum(piece.length for piece in pieces) for pieces in pages]
        reserved = call.ask(Reserve(call.space, digests, lengths, depth), Reserved)
        _check(len(reserved.statuses), len(pages))
        stored[:] = [status in _NEEDS_NO_WRITING for status in reserved.statuses]
        self.counters.pages_there += sum(stored)
        claimed = [index for index, status in enumerate(reserved.statuses) if status == Status.OK]
        for start in range(0, len(claimed), _CHUNK_PAGES):
            chunk = slice(start, start + _CHUNK_PAGES)
            to_copy = [
                StoredPage(offset, pages[index]) for offset, index in zip(reserved.offsets[chunk], claimed[chunk], strict=True)
            ]
            checksums = self._copier.put(call.memory, to_copy)
            committed = call.ask(Commit(reserved.writes[chunk], b"".join(checksums)), Statuses).statuses
            for index, status in zip(claimed[chunk], committed, strict=True):
                stored[index] = status == Status.OK
            self.counters.pages_put += sum(status == Status.OK for status in committed)

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
        reply = self._channel.ask(request, self.left_s)
        if not isinstance(reply, answer):
            raise AgentUnavailable(f"{type(reply).__name__} is no answer to {type(request).__name__}")
        return reply


def _check(statuses: int, pages: int) -> None:
    if statuses != pages:
        raise AgentUnavailable(f"an answer about {statuses} pages to a question about {pages}")
