"""Loads in `GET /admin/workers`."""

from __future__ import annotations

import random

from engine_adapters.base import LoadReport
from router.admin.views import worker_view
from router.config.load import parse_config
from router.gateway import Gateway


async def test_loads_are_told_with_one_decimal() -> None:
    text = "pools: [{unified: [{url: 'http://127.0.0.1:1'}]}]"
    gateway = Gateway(parse_config(text, "test", {}), lambda: 1000.0, random.Random(1))
    (pool,) = gateway.fleet.pools.values()
    (worker,) = pool.workers.values()
    worker.ranks[0].reported(LoadReport(0, 1, 0, kv_tokens_capacity=1000), 1000.0)
    rows = worker_view(pool, worker, [], 1000.0 + 1 / 3)["load"]
    assert isinstance(rows, list)
    assert [row["age_ms"] for row in rows] == [0.3]
    await gateway.close()
