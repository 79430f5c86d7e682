"""Commands to one Redis server, to several that share the shards, or to a cluster; each with a deadline, and one way to fail.

After a failure nothing is sent for a while, so that a dead server costs one deadline and not one a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from kvtier.shared_index.index_store import StoreUnavailable

_SLACK_S = 0.5  # the deadline of the turn is the caller's; this one only ends connections that hang


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`urls`: one server, or several among which the shards are dealt; of a cluster, any one of its nodes."""

    urls: tuple[str, ...]
    cluster: bool = False
    name: str = "loadback"  # begins every key
    shards: int = 8
    ttl_s: int = 3600  # after the last write to a block
    deadline_ms: float = 50.0
    retry_ms: float = 1000.0
    max_connections: int = 64


class RedisLink:
    """`command(shard, …)` reaches the server that has the shard. `close` must be awaited."""

    def __init__(self, settings: RedisSettings, clock_ms: Callable[[], float]) -> None:
        self.failures = 0
        self.fault = ""
        self._clock_ms = clock_ms
        self._retry_ms = settings.retry_ms
        self._left_alone_until_ms = float("-inf")
        make = _cluster if settings.cluster else _server
        self._clients = [make(url, settings) for url in settings.urls]

    async def command(self, shard: int, *parts: object) -> Any:
        """Raises `StoreUnavailable`."""
        if self._clock_ms() < self._left_alone_until_ms:
            raise StoreUnavailable(f"left alone for a while after: {self.fault}")
        try:
            reply = await self._clients[shard % len(self._clients)].execute_command(*parts)
        except (RedisError, OSError, TimeoutError) as error:
            self.leave_alone(f"{type(error).__name__}: {error}")
            raise StoreUnavailable(self.fault) from error
        self.fault = ""
        return reply

    def leave_alone(self, fault: str) -> None:
        """It failed: nothing is sent for a while."""
        self.failures += 1
        self.fault = fault
        self._left_alone_until_ms = self._clock_ms() + self._retry_ms

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


def _server(url: str, settings: RedisSettings) -> Any:
    timeout_s = settings.deadline_ms / 1000 + _SLACK_S
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        max_connections=settings.max_connections,
        retry=Retry(NoBackoff(), 0),
    )


def _cluster(url: str, settings: RedisSettings) -> Any:
    timeout_s = settings.deadline_ms / 1000 + _SLACK_S
    return RedisCluster.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        max_connections=settings.max_connections,
        retry=Retry(NoBackoff(), 1),  # once, to follow a slot that has moved
    )
