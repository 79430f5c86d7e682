"""An agent with a loop and a thread of its own, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agent_rig import DEADLINE_S

from kvtier.agent.agent import Agent
from kvtier.agent.config import parse_config


class AgentThread:
    """Runs from the start; `stop` ends it as SIGTERM would. Look at `agent` only through `inside`."""

    def __init__(self, config: dict[str, Any], epoch: int) -> None:
        self._config = config
        self._epoch = epoch
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=f"agent-{epoch}")
        self._thread.start()
        assert self._ready.wait(DEADLINE_S), "the agent does not start"

    def inside(self, look: Any) -> Any:
        """What `look(agent)` says, asked on the agent's own thread."""

        async def ask() -> Any:
            return look(self._agent)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the agent does not end"

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        ready = asyncio.Event()
        self._agent = Agent(parse_config(self._config), self._epoch)
        running = asyncio.create_task(self._agent.run(self._stop, ready))
        await ready.wait()
        self._ready.set()
        await running
