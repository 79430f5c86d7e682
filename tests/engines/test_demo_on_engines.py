"""The demo on real SGLang: everything that `loadback demo --engine sglang` does but the starting of the engines."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import loadback.stack
from engine_adapters.launch.pool import Pool
from engine_adapters.launch.ports import free_ports
from loadback.demo_command import SHAPES, _demo
from loadback.engines import real_members
from loadback.pool_spec import TINY_MODEL, EngineChoice, GatewaySpec, Member, PoolSpec

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_the_demo_ends_without_errors(
    pd_pool: Pool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def started(spec: PoolSpec, log_dir: Path, agent_socket: Path | None) -> AsyncIterator[tuple[Member, ...]]:
        assert agent_socket is None, "real engines have no agent in the demo"
        yield real_members(spec, pd_pool)

    monkeypatch.setattr(loadback.stack, "running_engines", started)
    (port,) = free_ports(1)
    shape = replace(SHAPES[EngineChoice.SGLANG], sessions=2, turns=3)
    spec = PoolSpec(EngineChoice.SGLANG, 2, 1, TINY_MODEL)
    assert await _demo(spec, GatewaySpec(port=port), shape, random.Random(1), once=True, json_only=True) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (summary["engine"], summary["errors"]) == ("sglang", 0)
    assert summary["turns"] >= 6
    assert summary["later_call_hit"] > 0.5
