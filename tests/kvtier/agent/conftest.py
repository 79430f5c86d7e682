"""Clients and bare connections of a test, closed when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_rig import client_of

from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient


@pytest.fixture
def connect() -> Iterator[Callable[..., PageClient]]:
    """Makes clients as `client_of` does."""
    clients: list[PageClient] = []

    def make(config: dict[str, Any], *arguments: Any, **more: Any) -> PageClient:
        clients.append(client_of(config, *arguments, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def dial() -> Iterator[Callable[[Path], Channel]]:
    """Makes bare connections."""
    channels: list[Channel] = []

    def make(path: Path) -> Channel:
        channels.append(Channel(path, 5.0))
        return channels[-1]

    yield make
    for channel in channels:
        channel.close()
