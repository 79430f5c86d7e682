"""What the experiment needs of engines: how a gateway reaches them, a common cold state, and what befalls an idling thread."""

from __future__ import annotations

from typing import Any, Protocol

from bench.prefetch.gateway_here import GatewayHere


class Site(Protocol):
    """`pool`: the gateway's pool as YAML has it. `agents`: its `agents`. `model`: what clients ask for."""

    pool: dict[str, Any]
    agents: list[dict[str, Any]]
    model: str
    min_saved_ms: float

    async def reset(self) -> None:
        """Every tier of every engine and agent is empty."""

    async def place(self, gateway: GatewayHere) -> None:
        """Before a session's first turn."""

    async def part(self, gateway: GatewayHere) -> None:
        """After it: the thread's KV leaves the device that it will be needed on."""


class SiteFailed(Exception):
    """Engines or agents did not do what the experiment needs. The message says what."""
