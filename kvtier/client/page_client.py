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
    Reserve,
    Reserved,
    Statuses,
)

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_CHUNK_PAGES = 256
_NEEDS_NO_WRITING = (Status.EXISTS, Status.WRITING)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the engine may wait, in seconds."""

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
    """Pages of one space. `digests` are joined, DIGEST_BYTES each."""

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

        def ask(met: Meeting) -> int:
            found = met.channel.ask(Look(met.space, digests, self._worker), self._settings.look_s)
            return min(found.local, found.dram + ssd_pages) if isinstance(found, Looked) else 0

        return self._with_agent(ask, 0)

    def get(self, digests: bytes, pages: Sequence[Sequence[Piece]]) -> list[bool]:
        """Fill the pieces of each page; whether it is whole there now. What is not holds anything."""
        return self._with_agent(lambda met: self._get(met, digests, pages), [False] * len(pages))

    def put(self, digests: bytes, pages: Sequence[Sequence[Piece]], depth: int = 0) -> list[bool]:
        """Store pages `depth`, `depth` + 1, ... of a prompt; whether each is stored, or is being stored by someone else."""
        return self._with_agent(lambda met: self._put(met, digests, pages, depth), [False] * len(pages))

    def clear(self) -> bool:
        """Forget all pages of the space; whether the agent did."""
        return self._with_agent(lambda met: bool(met.channel.ask(Clear(met.space), self._settings.put_s)), False)

    def close(self) -> None:
        self._meetings.close()

    def _get(self, met: Meeting, digests: bytes, pages: Sequence[Sequence[Piece]]) -> list[bool]:
        request = Acquire(met.space, digests, 1000 * self._settings.lease_s, 1000 * self._settings.get_s / 2)
        acquired = met.channel.ask(request, self._settings.get_s)
        if not isinstance(acquired, Acquired) or len(acquired.statuses) != len(pages):
            raise AgentRefused(f"{type(acquired).__name__} is no answer to Acquire for {len(pages)} pages")
        found = [index for index, status in enumerate(acquired.statuses) if status == Status.OK]
        stored = [StoredPage(offset, pages[index]) for offset, index in zip(acquired.offsets, found, strict=True)]
        lengths = [page.length for page in stored]
        if lengths != acquired.lengths:
            raise AgentRefused(f"pages of {set(acquired.lengths)} bytes are stored in this space, not of {set(lengths)}")
        whole = [False] * len(pages)
        for start in range(0, len(stored), _CHUNK_PAGES):
            chunk = slice(start, start + _CHUNK_PAGES)
            checksums = self._copier.get(met.memory, stored[chunk])
            for number, checksum in enumerate(checksums, start):
                whole[found[number]] = self._is_whole(met, digests, found[number], acquired, number, checksum)
            if not self._keep(met, acquired.lease, more=chunk.stop < len(stored)):
                break
        self.counters.pages_got += sum(whole)
        return whole

    def _is_whole(self, met: Meeting, digests: bytes, index: int, acquired: Acquired, number: int, checksum: bytes) -> bool:
        if checksum == acquired.checksums[number * CHECKSUM_BYTES : (number + 1) * CHECKSUM_BYTES]:
            return True
        self.counters.pages_corrupt += 1
        digest = digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        log.warning("page %s failed its checksum and is not used", digest.hex())
        met.channel.ask(Report(met.space, digest, acquired.generations[number]), self._settings.get_s)
        return False

    def _keep(self, met: Meeting, lease: int, *, more: bool) -> bool:
        """Renew the lease if there is more to copy under it, else release it; False where it has ended."""
        if more:
            renewed = met.channel.ask(Renew(lease, 1000 * self._settings.lease_s), self._settings.get_s)
            return isinstance(renewed, Done) and renewed.status is Status.OK
        met.channel.ask(Release(lease), self._settings.get_s)
        return True

    def _put(self, met: Meeting, digests: bytes, pages: Sequence[Sequence[Piece]], depth: int) -> list[bool]:
        lengths = [sum(piece.length for piece in pieces) for pieces in pages]
        reserved = met.channel.ask(Reserve(met.space, digests, lengths, depth), self._settings.put_s)
        if not isinstance(reserved, Reserved) or len(reserved.statuses) != len(pages):
            raise AgentRefused(f"{type(reserved).__name__} is no answer to Reserve for {len(pages)} pages")
        stored = [status in _NEEDS_NO_WRITING for status in reserved.statuses]
        self.counters.pages_there += sum(stored)
        claimed = [index for index, status in enumerate(reserved.statuses) if status == Status.OK]
        if claimed:
            to_copy = [StoredPage(offset, pages[index]) for offset, index in zip(reserved.offsets, claimed, strict=True)]
            checksums = self._copier.put(met.memory, to_copy)
            done = met.channel.ask(Commit(reserved.writes, b"".join(checksums)), self._settings.put_s)
            committed = done.statuses if isinstance(done, Statuses) else b""
            for index, status in zip(claimed, committed, strict=False):
                stored[index] = status == Status.OK
            self.counters.pages_put += sum(status == Status.OK for status in committed)
        return stored

    def _with_agent(self, ask: Callable[[Meeting], _Answer], without: _Answer) -> _Answer:
        met: Meeting | None = None
        try:
            met = self._meetings.take()
            answer = ask(met)
        except AgentUnavailable as error:
            self.counters.failures += 1
            log.log(logging.DEBUG if met is None else logging.WARNING, "no KV from the agent: %s", error)
            self._meetings.failed(met)
            return without
        except AgentRefused as error:
            self.counters.failures += 1
            log.warning("the agent refused: %s", error)
            answer = without
        if met is not None:
            self._meetings.give_back(met)
        return answer
