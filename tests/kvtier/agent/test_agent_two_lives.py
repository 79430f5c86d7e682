"""One get over two lives of an agent: what the first life gave does not count for what the second left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from agent_rig import PATIENT, SPACE, EngineMemory, agent_here, config_of, digests, put

from kvtier.client import columns
from kvtier.client.channel import AgentGone
from kvtier.client.copier import PortableCopier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.memory import SharedMemory
from kvtier.client.page_client import PageClient

PAGES, SPOILT = 128, 3


class FallsBetween(PortableCopier):
    """After the first chunk the agent goes; a bit of what it gave is another one when it is met again."""

    def __init__(self) -> None:
        super().__init__(1)
        self._given: Sequence[int] | None = None

    def get(self, memory: SharedMemory, offsets: Sequence[int], pages: EnginePages) -> bytes:
        if self._given is None:
            self._given = list(offsets)
        elif self._given:
            memory.view(self._given[SPOILT], 1)[0] ^= 1
            self._given = []
            raise AgentGone("the agent has closed the connection")
        return super().get(memory, offsets, pages)


async def test_a_page_that_fails_when_it_is_got_again_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_CHUNK_PAGES", PAGES // 2)
    async with agent_here(config := config_of(tmp_path)) as agent:
        client = PageClient(Path(config["socket"]), SPACE, FallsBetween(), PATIENT)
        memory = EngineMemory(range(PAGES), filled=False)
        assert all(await asyncio.to_thread(put, client, range(PAGES)))
        got = await asyncio.to_thread(client.get, digests(range(PAGES)), memory.pages)
        client.close()
        assert got == memory.right() == [number != SPOILT for number in range(PAGES)]
        assert (client.counters.pages_corrupt, agent.store.counters.corrupt_dram) == (1, 1)
