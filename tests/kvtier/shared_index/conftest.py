"""Redis servers that live as long as the tests of this folder, and stores that are closed after each test."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis_rig import RedisCluster, RedisServer, settings_of

from kvtier.index.memory import BlockIndex
from kvtier.shared_index.index_store import IndexStore, MemoryIndexStore
from kvtier.shared_index.redis_link import RedisLink, RedisSettings
from kvtier.shared_index.redis_store import RedisIndexStore

OpenRedis = Callable[[RedisSettings], RedisIndexStore]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def second_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis-2"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("redis-cluster"))
    yield cluster
    cluster.kill()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that the test may kill."""
    server = RedisServer(tmp_path)
    yield server
    server.go_on()
    server.kill()


@pytest.fixture
async def open_redis() -> AsyncIterator[OpenRedis]:
    stores: list[RedisIndexStore] = []

    def make(settings: RedisSettings) -> RedisIndexStore:
        link = RedisLink(settings, lambda: time.monotonic() * 1000)
        stores.append(RedisIndexStore(link, settings, "blocks", os.urandom))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


@pytest.fixture(params=["memory", "redis", "redis cluster", "two redis servers"])
def open_store(request: pytest.FixtureRequest, open_redis: OpenRedis) -> Callable[[], IndexStore]:
    """Opens what is, within one test, one and the same store."""
    if request.param == "memory":
        store = MemoryIndexStore(BlockIndex(max_entries=4096, max_sources=16))
        return lambda: store
    if request.param == "redis":
        urls = [request.getfixturevalue("redis_server").url]
    elif request.param == "redis cluster":
        urls = [request.getfixturevalue("redis_cluster").url]
    else:
        urls = [request.getfixturevalue("redis_server").url, request.getfixturevalue("second_server").url]
    settings = settings_of(urls, cluster=request.param == "redis cluster")
    return lambda: open_redis(settings)
