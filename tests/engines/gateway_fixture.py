"""The gateway as a process of its own in front of engines that already run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import start_process

PORTS = (19400, 19499)


def pd_pool_yaml(prefills: Sequence[str], decodes: Sequence[str]) -> dict[str, object]:
    """Workers are called p0, p1, … and d0, d1, …"""
    return {
        "prefill": [{"url": url, "name": f"p{i}"} for i, url in enumerate(prefills)],
        "decode": [{"url": url, "name": f"d{i}"} for i, url in enumerate(decodes)],
    }


@asynccontextmanager
async def running_gateway(pool: dict[str, object], folder: Path, **sections: object) -> AsyncIterator[str]:
    """The base URL of a gateway over one pool, ready to serve. Its log is `gateway.log` in `folder`."""
    (port,) = free_ports(1, *PORTS)
    config = folder / "gateway.yaml"
    tree = {"listen": {"port": port, "drain_s": 5}, "pools": [pool], "log": {"turns": True}, **sections}
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "loadback", "serve", "--config", str(config)]
    process = await start_process("gateway", url, command, {}, folder / "gateway.log")
    try:
        await process.ready("/readyz", 60.0)
        yield url
    finally:
        await process.stop(20.0)
