"""All checks of one visit, from a configuration or at a running gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from engine_adapters.base import Endpoint, EngineInfo
from loadback.admin_api import admin_headers
from loadback.doctor.agents import check_agents, check_nodes
from loadback.doctor.check import Check, Target, ok
from loadback.doctor.engine import check_engine, check_pages
from loadback.doctor.events import check_events
from loadback.doctor.gateway import check_gateway
from loadback.doctor.host import check_calibration_path, check_file_limit
from loadback.doctor.prompt import check_prompt
from loadback.first_beliefs import first_beliefs
from router.config.tree import Config, PoolConfig

CONTROL_TIMEOUT_S = 10.0

Found = list[tuple[Target, EngineInfo]]


async def examine_config(config: Config) -> list[Check]:
    checks = [check_file_limit(sum(pool.max_running_turns for pool in config.pools))]
    checks += check_calibration_path(config.calibration.path)
    checks += [ok(pool.name, "hardware", line) for pool in config.pools if (line := first_beliefs(pool)) is not None]
    async with httpx.AsyncClient(timeout=CONTROL_TIMEOUT_S, trust_env=False) as http:
        for pool in config.pools:
            found, told = await _examine_engines(http, targets_of(pool), events=config.index.kv_events)
            checks += told
            if pool.prompt is not None:
                checks += await check_prompt(http, pool.name, pool.engine, pool.prompt, found)
    return checks + await check_agents(config)


async def examine_gateway(url: str, token: str | None) -> list[Check]:
    async with httpx.AsyncClient(
        base_url=url, headers=admin_headers(token), timeout=CONTROL_TIMEOUT_S, trust_env=False
    ) as http:
        targets, checks = await check_gateway(http)
        checks += await check_nodes(http) if targets else []
    async with httpx.AsyncClient(timeout=CONTROL_TIMEOUT_S, trust_env=False) as http:
        for pool in dict.fromkeys(target.pool for target in targets):
            _, told = await _examine_engines(http, [target for target in targets if target.pool == pool], events=True)
            checks += told
    return checks


def targets_of(pool: PoolConfig) -> list[Target]:
    return [
        Target(
            worker.worker_id,
            pool.name,
            role,
            pool.engine,
            Endpoint(worker.url, worker.api_key, worker.admin_key),
            worker.bootstrap_host or urlsplit(worker.url).hostname,
        )
        for role, worker in pool.workers()
    ]


async def _examine_engines(http: httpx.AsyncClient, targets: Sequence[Target], *, events: bool) -> tuple[Found, list[Check]]:
    results = await asyncio.gather(*(check_engine(http, target) for target in targets))
    found: Found = []
    checks: list[Check] = []
    for target, (info, told) in zip(targets, results, strict=True):
        checks += told
        if info is not None:
            found.append((target, info))
            checks += await check_events(target.name, info) if events else []
    if found:
        checks.append(check_pages(targets[0].pool, ((target.name, info) for target, info in found)))
    return found, checks
