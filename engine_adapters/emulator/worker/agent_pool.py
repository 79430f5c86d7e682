"""An emulated worker's L3: the pool of this host's node agent, reached as an engine's storage plug-in does. Real bytes move.

An emulated page has no keys and values. Its bytes are its digest, which its token ids make, over and over: whoever wrote it,
its reader can tell whether it is the right one. As in SGLang one thread asks and reads and another writes, each first come
first served; what goes wrong is a miss.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from engine_adapters.emulator.model.pool import Done, Reading
from engine_adapters.emulator.model.request import Namespace
from kvtier.client.engine_pages import EnginePages
from kvtier.client.native_copier import best_copier
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.key import DIGEST_BYTES
from kvtier.page.space import PageSpace

STORAGE_NAME = "loadback-emulator"  # what replies call it, where SGLang tells its storage class
_MEET_S = 5.0
_SETTINGS = ClientSettings(connect_s=1.0, look_s=1.0)  # beside everything else on a small machine, answers take their time
_BATCH_PAGES = 128  # as SGLang asks, reads and writes
_MAX_WAITING_PAGES = 65_536  # beyond it pages are not offered: the writer is behind for good

log = logging.getLogger(__name__)

Resume = Callable[[Callable[[float], None]], None]


class PoolCounters(msgspec.Struct):
    """Pages; `wrong` ones passed their checksum and were another page's, `crashes` are faults here: there must be none."""

    read: int = 0
    written: int = 0
    wrong: int = 0
    not_offered: int = 0
    crashes: int = 0


class AgentPool:
    """`engine_adapters.emulator.model.pool.Pool` over a `PageClient`, which it owns.

    `start` and `close` are its life; `resume` lets an action happen to the engine. `most_names` are remembered.
    """

    def __init__(self, socket: Path, model: str, page_tokens: int, token_bytes: int, most_names: int) -> None:
        self.counters = PoolCounters()
        self.page_bytes = page_tokens * token_bytes
        space = PageSpace(model, "emulated", "digests", page_tokens)
        self._client = PageClient(socket, space, best_copier(), _SETTINGS)
        self._most_names = most_names
        self._names: OrderedDict[tuple[Namespace, int], bytes] = OrderedDict()
        self._waiting_pages = 0
        self._reader = ThreadPoolExecutor(1, "l3-read")
        self._writer = ThreadPoolExecutor(1, "l3-write")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume: Resume | None = None

    async def start(self, resume: Resume) -> None:
        """Meets the agent: its memory is mapped before the first request comes. One that is away is tried again later."""
        self._loop, self._resume = asyncio.get_running_loop(), resume
        if not await asyncio.to_thread(self._client.warm, _MEET_S):
            log.warning("no agent to meet: all is computed until there is one")

    def close(self) -> None:
        """What is being copied ends within the client's deadlines; what waits is dropped."""
        self._loop = None
        for threads in (self._reader, self._writer):
            threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def name(self, namespace: Namespace, hashes: Sequence[int], digests: Sequence[bytes]) -> None:
        """What storage calls the pages that the engine will speak of by `hashes`. The least recently named are forgotten."""
        for page, digest in zip(hashes, digests, strict=True):
            self._names[namespace, page] = digest
            self._names.move_to_end((namespace, page))
        while len(self._names) > self._most_names:
            self._names.popitem(last=False)

    def read(self, hashes: Sequence[int], namespace: Namespace, least: int, now_ms: float, done: Done) -> Reading | None:
        digests = self._digests(hashes, namespace)
        if len(digests) < least:
            return Reading(0, now_ms)
        self._reader.submit(self._read, digests, least, done).add_done_callback(self._ended)
        return None

    def write(self, hashes: Sequence[int], namespace: Namespace, depth: int, now_ms: float) -> None:
        digests = self._digests(hashes, namespace)
        if self._waiting_pages + len(digests) > _MAX_WAITING_PAGES:
            self.counters.not_offered += len(digests)
            return
        self._waiting_pages += len(digests)
        self._writer.submit(self._write, digests, depth).add_done_callback(self._ended)

    def _digests(self, hashes: Sequence[int], namespace: Namespace) -> list[bytes]:
        """Of the leading pages that have a name."""
        found: list[bytes] = []
        for page in hashes:
            digest = self._names.get((namespace, page))
            if digest is None:
                break
            found.append(digest)
        return found

    def _read(self, digests: list[bytes], least: int, done: Done) -> None:
        count = 0
        try:
            held = self._look(digests)
            if held >= least:
                count = self._get(digests[:held])
        finally:
            self._tell(lambda now_ms: done(count, now_ms))

    def _look(self, digests: list[bytes]) -> int:
        """Pages of the leading run that this node has, on SSD as well."""
        held = 0
        for batch in _batches(digests):
            found = self._client.look(b"".join(batch), _BATCH_PAGES)
            held += found
            if found < len(batch):
                break
        return held

    def _get(self, digests: list[bytes]) -> int:
        """Read them, look at every byte; how many leading ones came."""
        count = 0
        buffer = bytearray(min(len(digests), _BATCH_PAGES) * self.page_bytes)
        for batch in _batches(digests):
            whole = self._client.get(b"".join(batch), self._pieces(buffer, len(batch)))
            for index, digest in enumerate(batch):
                if not whole[index]:
                    return count
                at = index * self.page_bytes
                if buffer[at : at + self.page_bytes] != page_content(digest, self.page_bytes):
                    self.counters.wrong += 1
                    return count
                count += 1
                self.counters.read += 1
        return count

    def _write(self, digests: list[bytes], depth: int) -> None:
        try:
            for start, batch in zip(range(0, len(digests), _BATCH_PAGES), _batches(digests), strict=True):
                content = bytearray().join(page_content(digest, self.page_bytes) for digest in batch)
                stored = self._client.put(b"".join(batch), self._pieces(content, len(batch)), depth + start)
                self.counters.written += sum(stored)
        finally:
            self._tell(lambda now_ms: self._written(len(digests)))

    def _written(self, pages: int) -> None:
        self._waiting_pages -= pages

    def _ended(self, work: Future[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self.counters.crashes += 1
            log.error("pages were neither stored nor restored", exc_info=error)

    def _tell(self, action: Callable[[float], None]) -> None:
        loop, resume = self._loop, self._resume
        if loop is not None and resume is not None:
            loop.call_soon_threadsafe(resume, action)

    def _pieces(self, buffer: bytearray, pages: int) -> EnginePages:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return EnginePages.striped([(address, self.page_bytes)], pages)


def page_content(digest: bytes, size: int) -> bytes:
    """`size` bytes of an emulated page."""
    return (digest * (size // DIGEST_BYTES + 1))[:size]


def _batches(digests: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [digests[start : start + _BATCH_PAGES] for start in range(0, len(digests), _BATCH_PAGES)]
