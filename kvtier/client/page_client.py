"""What an engine asks of its node's agent: how much of a prompt is there, bring it, keep it.

Blocking calls with deadlines, from any of the engine's threads; whatever goes wrong is a miss, never an exception. Bytes are
checked where the engine will use them, after they were copied: a page that fails is not served, and the agent is told to look
for itself. An agent that is away costs nothing for a while, then it is tried again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvtier.client.call import Call
from kvtier.client.channel import AgentGone, AgentRefused, AgentUnavailable
from kvtier.client.columns import (
    check_count,
    chunks_of,
    differing,
    digests_of,
    found_pages,
    mark,
)
from kvtier.client.copier import Copier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.meetings import Meeting, Meetings
from kvtier.client.memory import SharedMemory
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.settings.ranges import Seconds
from kvtier.wire.leased_pages import numbers_ok
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
)

log = logging.getLogger(__name__)

_REPORTED = 64  # corrupt pages that the agent is told of at once
_AHEAD = 2  # chunks that the agent is asked about before they are copied
_NEEDS_NO_WRITING = (Status.EXISTS, Status.WRITING)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the engine may wait, in seconds: each operation as a whole, but for its own copying."""

    connect_s: Seconds = 0.2
    look_s: Seconds = 0.1
    get_s: Seconds = 2.0
    put_s: Seconds = 2.0
    lease_s: Seconds = 5.0
    retry_s: Seconds = 1.0  # an agent that failed is left alone for so long


class _Committing(NamedTuple):
    """What was written of a chunk, and the call that says so: none where nothing was."""

    numbers: Sequence[int]
    chunk: slice
    pages: Sequence[int]


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

        def ask(call: Call) -> None:
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
        """Forget all pages of the space; whether the agent did, and will have after a crash."""
        said: list[Done] = []
        self._with_agent(lambda call: said.append(call.ask(Clear(call.space), Done)), self._settings.put_s)
        return any(done.status is Status.OK for done in said)

    def warm(self, deadline_s: float) -> bool:
        """Meet the agent and wait until its memory is mapped here; whether it is."""
        memories: list[SharedMemory] = []
        self._with_agent(lambda call: memories.append(call.memory), deadline_s)
        return all(memory.populated.wait(deadline_s) for memory in memories) and bool(memories)

    def close(self) -> None:
        self._meetings.close()
        self._copier.close()

    def _get(self, call: Call, digests: bytes, pages: EnginePages, whole: list[bool]) -> None:
        whole[:] = [False] * len(pages)  # what an earlier life gave is written over
        ttl_ms, corrupt = 1000 * self._settings.lease_s, []
        chunks = chunks_of(len(pages), pages.page_bytes)

        def acquire(chunks: Sequence[slice]) -> list[Request]:
            return [Acquire(call.space, digests_of(digests, chunk), ttl_ms, 500 * call.left_s) for chunk in chunks]

        asked = deque(call.send(*acquire(chunks[:_AHEAD])))
        for index, chunk in enumerate(chunks):
            acquired = call.receive(asked.popleft(), Acquired)
            begun_s = self._clock_s()
            corrupt += self._fill(call, chunk, acquired, pages.part(chunk), whole)
            read_bytes = acquired.statuses.count(Status.OK) * pages.page_bytes
            release = Release(acquired.lease, read_bytes, 1000 * (self._clock_s() - begun_s))
            asked.extend(call.send(*acquire(chunks[index + _AHEAD : index + _AHEAD + 1]), release)[:-1])
        for start in range(0, len(corrupt), _REPORTED):
            self._report(call, digests, corrupt[start : start + _REPORTED])

    def _fill(
        self, call: Call, chunk: slice, acquired: Acquired, pages: EnginePages, whole: list[bool]
    ) -> list[tuple[int, int]]:
        """Copy what was leased; (page, generation) of those that are not what they should be."""
        found = found_pages(acquired, len(pages), pages.page_bytes)
        checksums = self._copier.get(call.memory, acquired.offsets, pages.chosen(found))
        wrong = differing(checksums, acquired.checksums)
        mark(whole, chunk, [page for number, page in enumerate(found) if number not in wrong] if wrong else found)
        return [(chunk.start + found[number], acquired.generations[number]) for number in wrong]

    def _report(self, call: Call, digests: bytes, corrupt: Sequence[tuple[int, int]]) -> None:
        named = [(digests_of(digests, slice(index, index + 1)), generation) for index, generation in corrupt]
        for digest, _ in named:
            self.counters.pages_corrupt += 1
            log.warning("page %s failed its checksum and is not used", digest.hex())
        for number in call.send(*(Report(call.space, digest, generation) for digest, generation in named)):
            call.receive(number, Done)

    def _put(self, call: Call, digests: bytes, pages: EnginePages, depth: int, stored: list[bool]) -> None:
        stored[:] = [False] * len(pages)  # what an earlier life had is gone
        chunks = chunks_of(len(pages), pages.page_bytes)

        def reserve(chunks: Sequence[slice]) -> list[Request]:
            digests_and_starts = [(digests_of(digests, chunk), depth + chunk.start) for chunk in chunks]
            return [Reserve(call.space, each, pages.page_bytes, start) for each, start in digests_and_starts]

        asked = deque(call.send(*reserve(chunks[:_AHEAD])))
        committing: deque[_Committing] = deque()
        for index, chunk in enumerate(chunks):
            if index >= _AHEAD:
                self._settle(call, committing.popleft(), stored)
            reserved = call.receive(asked.popleft(), Reserved)
            claimed = self._claimed(reserved, chunk, stored)
            commits: list[Request] = []
            if claimed:
                checksums = self._copier.put(call.memory, reserved.offsets, pages.part(chunk).chosen(claimed))
                commits.append(Commit(reserved.write, checksums))
            numbers = call.send(*commits, *reserve(chunks[index + _AHEAD : index + _AHEAD + 1]))
            committing.append(_Committing(numbers[: len(commits)], chunk, claimed))
            asked.extend(numbers[len(commits) :])
        for last in committing:
            self._settle(call, last, stored)

    def _claimed(self, reserved: Reserved, chunk: slice, stored: list[bool]) -> Sequence[int]:
        """Pages of the chunk to be written now."""
        statuses = reserved.statuses
        check_count(len(statuses), len(stored[chunk]))
        claimed = numbers_ok(statuses)
        check_count(len(reserved.offsets), len(claimed))
        if len(claimed) < len(statuses):
            stored[chunk] = [status in _NEEDS_NO_WRITING for status in statuses]
            self.counters.pages_there += sum(stored[chunk])
        return claimed

    def _settle(self, call: Call, committing: _Committing, stored: list[bool]) -> None:
        for number in committing.numbers:
            if call.receive(number, Done).status is Status.OK:
                mark(stored, committing.chunk, committing.pages)
                self.counters.pages_put += len(committing.pages)

    def _with_agent(self, work: Callable[[Call], object], deadline_s: float) -> bool:
        """Whether all of it was done; what was done before something failed stays done. Of an agent that goes, the next life is
        asked anew, once."""
        until_s = time.monotonic() + deadline_s
        try:
            return self._meet(work, until_s)
        except AgentGone as error:
            log.debug("the agent has gone: %s", error)
        try:
            return self._meet(work, until_s)
        except AgentGone as error:
            return self._failed(None, error)

    def _meet(self, work: Callable[[Call], object], until_s: float) -> bool:
        """Raises `AgentGone`."""
        met: Meeting | None = None
        try:
            met = self._meetings.take(max(0.0, until_s - time.monotonic()))
            work(Call(met, until_s))
        except AgentGone:
            self._meetings.gone(met)
            raise
        except AgentRefused as error:
            self.counters.failures += 1
            log.warning("the agent refused: %s", error)
            if met is not None:
                met.channel.close()  # and with it what it holds
            return False
        except (AgentUnavailable, ValueError) as error:  # ValueError: an agent that talks nonsense
            return self._failed(met, error)
        self._meetings.give_back(met)
        return True

    def _failed(self, met: Meeting | None, error: Exception) -> bool:
        self.counters.failures += 1
        log.log(logging.DEBUG if met is None else logging.WARNING, "no KV from the agent: %s", error)
        self._meetings.failed(met)
        return False
