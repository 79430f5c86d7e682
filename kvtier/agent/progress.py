"""Lets many wait for something to change, each for a while."""

from __future__ import annotations

import asyncio


class Progress:
    """Every `made` wakes everyone who waits; they look for themselves whether it was theirs."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def made(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until the next `made`, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
