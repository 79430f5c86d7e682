"""What the engine's thread hands over: no fault of it comes back. Tensors, which need torch, are stood in for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from engine_adapters.vllm_storage.orders import SaveBlocks
from engine_adapters.vllm_storage.working import Working
from kvtier.page.key import DIGEST_BYTES

BLOCK_BYTES = 8 << 20  # four make a chunk


class Host:
    """What was copied out; its pages are their blocks' numbers."""

    def __init__(self, block_ids: Sequence[int]) -> None:
        self._block_ids = block_ids

    def ready(self) -> None:
        pass

    def pages(self, blocks: int) -> Sequence[int]:
        return self._block_ids[:blocks]


class Tensors:
    """Has no memory left for as long as `full`."""

    block_bytes = BLOCK_BYTES
    full = False

    def copy_out(self, block_ids: Sequence[int]) -> Host:
        if self.full:
            raise MemoryError("out of memory")
        return Host(block_ids)


class Client:
    """Stores everything."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.eight = threading.Event()

    def put(self, digests: bytes, pages: Sequence[int], depth: int) -> list[bool]:
        assert len(digests) == len(pages) * DIGEST_BYTES
        self.stored += pages
        if len(self.stored) == 8:
            self.eight.set()
        return [True] * len(pages)

    def close(self) -> None:
        pass


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def tensors() -> Tensors:
    return Tensors()


@pytest.fixture
def working(client: Any, tensors: Any) -> Iterator[Working]:
    made = Working(client, tensors, load_s=1.0, staging_bytes=8 * BLOCK_BYTES)
    yield made
    made.close()


def order(blocks: range) -> SaveBlocks:
    return SaveBlocks(block_ids=tuple(blocks), digests=bytes(DIGEST_BYTES * len(blocks)), depth=blocks.start)


def test_memory_that_has_run_out_stays_with_us_and_keeps_no_room(working: Working, tensors: Tensors, client: Client) -> None:
    tensors.full = True
    for _ in range(5):
        working.save(order(range(6)))
    assert (working.counters.crashes, working.counters.blocks_not_saved) == (5, 30)
    tensors.full = False
    working.save(order(range(8)))
    assert client.eight.wait(10)
    assert client.stored == list(range(8))
