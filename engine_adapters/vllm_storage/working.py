"""A worker's side: restores blocks on one thread and stores blocks on another, beside the engine's own.

The engine's thread hands over what is to be loaded, and copies what is to be saved into host memory; it waits for no agent.
Whatever goes wrong is a block to be computed, or one that is not stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from engine_adapters.vllm_storage.orders import LoadBlocks, SaveBlocks
from kvtier.client.page_client import PageClient
from kvtier.page.key import DIGEST_BYTES

if TYPE_CHECKING:  # it needs torch
    from engine_adapters.vllm_storage.block_tensors import BlockTensors, HostBlocks

log = logging.getLogger("vllm.loadback.worker")  # vLLM writes what is logged below its own name

_CHUNK_BYTES = 32 << 20


class WorkingCounters(msgspec.Struct):
    """Approximate: several threads count."""

    blocks_loaded: int = 0
    blocks_not_loaded: int = 0
    blocks_saved: int = 0
    blocks_not_saved: int = 0  # refused by the agent, or no staging memory left
    crashes: int = 0  # faults of our own; should stay 0


class Working:
    """One per worker. `close` ends both threads, what is queued is dropped."""

    def __init__(
        self,
        client: PageClient,
        tensors: BlockTensors,
        load_s: float,
        staging_bytes: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = WorkingCounters()
        self._client = client
        self._tensors = tensors
        self._load_s = load_s
        self._clock_s = clock_s
        self._chunk_blocks = max(1, _CHUNK_BYTES // tensors.block_bytes)
        self._staging_left = staging_bytes
        self._lock = threading.Lock()
        self._loaded: set[str] = set()
        self._not_loaded: set[int] = set()
        self._loader = ThreadPoolExecutor(1, "loadback-load")
        self._saver = ThreadPoolExecutor(1, "loadback-save")

    def load(self, order: LoadBlocks) -> None:
        """Begin; `take_loaded` tells when it has ended, however."""
        self._loader.submit(self._load, order, self._clock_s() + self._load_s)

    def save(self, order: SaveBlocks) -> None:
        """Copy the blocks now and store them later. No fault reaches the engine: what cannot be copied is not stored."""
        for start in range(0, len(order.block_ids), self._chunk_blocks):
            block_ids = order.block_ids[start : start + self._chunk_blocks]
            size = len(block_ids) * self._tensors.block_bytes
            if not self._stage(size):
                self.counters.blocks_not_saved += len(order.block_ids) - start
                return  # what lies behind a gap is not restored
            host = self._copied(block_ids, size)
            if host is None:
                self.counters.blocks_not_saved += len(order.block_ids) - start
                return
            digests = order.digests[start * DIGEST_BYTES : (start + len(block_ids)) * DIGEST_BYTES]
            self._saver.submit(self._save, host, digests, order.depth + start, size)

    def _copied(self, block_ids: Sequence[int], size: int) -> HostBlocks | None:
        """The root of a copy on the engine's thread; most likely memory has run out. None where it failed."""
        try:
            return self._tensors.copy_out(block_ids)
        except Exception:
            self.counters.crashes += 1
            log.exception("copying %d blocks failed", len(block_ids))
            self._unstage(size)
            return None

    def take_loaded(self) -> set[str]:
        """Requests whose loads have ended since the last call."""
        with self._lock:
            loaded, self._loaded = self._loaded, set()
        return loaded

    def take_not_loaded(self) -> set[int]:
        """Blocks that hold anything, of requests that `take_loaded` has told or will tell."""
        with self._lock:
            not_loaded, self._not_loaded = self._not_loaded, set()
        return not_loaded

    def close(self) -> None:
        for threads in (self._loader, self._saver):
            threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()
        log.info("%s", self.counters)

    def _load(self, order: LoadBlocks, until_s: float) -> None:
        whole = 0
        try:
            whole = self._restore(order, until_s)
        except Exception:
            self.counters.crashes += 1
            log.exception("restoring %d blocks failed", len(order.block_ids))
        self.counters.blocks_loaded += whole
        self.counters.blocks_not_loaded += len(order.block_ids) - whole
        with self._lock:
            self._not_loaded.update(order.block_ids[whole:])
            self._loaded.add(order.request)

    def _restore(self, order: LoadBlocks, until_s: float) -> int:
        """Blocks of the leading run that were restored."""
        done = 0
        host: HostBlocks | None = None
        while done < len(order.block_ids) and self._clock_s() < until_s:
            block_ids = order.block_ids[done : done + self._chunk_blocks]
            host = host or self._tensors.room(len(block_ids))
            digests = order.digests[done * DIGEST_BYTES : (done + len(block_ids)) * DIGEST_BYTES]
            got = self._client.get(digests, host.pages(len(block_ids)))
            run = len(got) if all(got) else got.index(False)
            if run:
                self._tensors.copy_in(host, block_ids[:run])
            done += run
            if run < len(block_ids):
                break
        return done

    def _save(self, host: HostBlocks, digests: bytes, depth: int, size: int) -> None:
        blocks = len(digests) // DIGEST_BYTES
        saved = 0
        try:
            host.ready()
            saved = sum(self._client.put(digests, host.pages(blocks), depth))
        except Exception:
            self.counters.crashes += 1
            log.exception("storing %d blocks failed", blocks)
        self.counters.blocks_saved += saved
        self.counters.blocks_not_saved += blocks - saved
        self._unstage(size)

    def _stage(self, size: int) -> bool:
        with self._lock:
            if self._staging_left < size:
                return False
            self._staging_left -= size
        return True

    def _unstage(self, size: int) -> None:
        with self._lock:
            self._staging_left += size
