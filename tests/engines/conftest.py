"""Real engines for the tests that need them: started once a session, on ports of their own, and always stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from engine_adapters.launch.pool import READY_DEADLINE_S, READY_PATH, Pool, launch_pd_pool
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.vllm import VllmSpec, start_vllm

ROOT = Path(__file__).parents[2]
MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pd_pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    """Real SGLang: two prefill servers and one decode server."""
    logs = tmp_path_factory.mktemp("sglang")
    async with launch_pd_pool(MODEL_DIR, logs, prefills=2, decodes=1) as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_spec(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmSpec]:
    """A real vLLM server, ready, by what it was started with."""
    port, kv_port, replay_port = free_ports(3)
    spec = VllmSpec(model_dir=MODEL_DIR, port=port, kv_port=kv_port, replay_port=replay_port)
    process = await start_vllm(spec, tmp_path_factory.mktemp("vllm"))
    try:
        await process.ready(READY_PATH, READY_DEADLINE_S)
        yield spec
    finally:
        await process.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=120.0) as client:
        yield client
