"""The routers that are compared, as processes in front of one pool: how each is started, how a worker leaves it and returns.

Both know the engines alike: by URL and bootstrap port, with one decode and two prefill servers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec
import yaml

from bench.placement.site import NODE, Site
from engine_adapters.launch.environments import engine_bin
from engine_adapters.launch.pool import Pool
from engine_adapters.launch.ports import free_ports
from engine_adapters.launch.process import start_process

HOST = "127.0.0.1"
MODEL = "tiny-agent"
_TOKEN_BYTES = 1024
_PREFILL = {"prefill_ms_per_token": 0.08, "prefill_ms_per_token2": 4.5e-5, "prefill_ms_per_cached_token": 0.034}
_READY_S = 60.0
_CALL_S = 20.0
_POLL_S = 0.05


class RouterFailed(Exception):
    """A router's admin API did not do what it was asked. The message is its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Router(Protocol):
    """`url` takes chats. Workers are the pool's prefill servers by number."""

    url: str

    async def use(self, policy: str) -> None:
        """Place by it from now on."""

    async def take_out(self, worker: int) -> None:
        """No new turns; running ones finish."""

    async def bring_back(self, worker: int) -> None:
        """As new; returns when it is known to the router."""


class Predicted(msgspec.Struct, frozen=True):
    """One turn's time to its first token, as predicted when it was placed and as it was; ms."""

    worker: str
    policy: str
    predicted_ms: float
    actual_ms: float

    @property
    def error(self) -> float:
        return abs(self.predicted_ms - self.actual_ms) / self.actual_ms


class Loadback:
    """This project's gateway, with its admin API."""

    def __init__(self, url: str, http: httpx.AsyncClient, workers: Sequence[dict[str, Any]]) -> None:
        self.url = url
        self._http = http
        self._workers = workers

    async def use(self, policy: str) -> None:
        await self._call("PUT", "/admin/policy", {"name": policy})

    async def take_out(self, worker: int) -> None:
        await self._call("POST", f"/admin/workers/{_name(worker)}/drain")

    async def bring_back(self, worker: int) -> None:
        await self._call("DELETE", f"/admin/workers/{_name(worker)}")
        await self._call("POST", "/admin/workers", {"pool": "default", "role": "prefill", "worker": self._workers[worker]})
        await self.followed()

    async def followed(self) -> None:
        """Every worker is ready and its events are followed. Raises TimeoutError."""
        async with asyncio.timeout(_READY_S):
            while not _live(await self._call("GET", "/admin/workers")):  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(_POLL_S)

    async def predictions(self, turns: int) -> list[Predicted]:
        """Of the last `turns` that were served, oldest first."""
        told = await self._call("GET", f"/admin/decisions?limit={turns}")
        return [
            Predicted(each["worker"], each["policy"], each["predicted"]["ttft_ms"], each["actual"]["ttft_ms"])
            for each in told["decisions"]
            if each["outcome"] == "served" and each["predicted"] and each["actual"]["ttft_ms"]
        ]

    async def ttft_accuracy(self) -> dict[str, Any]:
        """What `/admin/workers` says of each prefill worker's predictions."""
        told = await self._call("GET", "/admin/workers")
        return {each["id"]: each["ttft"] for each in told["workers"] if each["role"] == "prefill"}

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return await _asked(self._http, method, self.url + path, body)


class Smg:
    """The Shepherd Model Gateway with its `cache_aware` policy for both halves of a pair."""

    def __init__(self, url: str, http: httpx.AsyncClient, workers: Sequence[dict[str, Any]]) -> None:
        self.url = url
        self._http = http
        self._workers = workers

    async def use(self, policy: str) -> None:
        """It was started with the only one."""

    async def take_out(self, worker: int) -> None:
        found = [each["id"] for each in await self._known() if each["url"] == self._workers[worker]["url"]]
        await _asked(self._http, "DELETE", f"{self.url}/workers/{found[0]}")

    async def bring_back(self, worker: int) -> None:
        """While the old one drains, the same URL is refused, and now and then while nothing is listed, as one that is being
        added already; then a new one is added within a moment."""
        async with asyncio.timeout(_READY_S):
            url = self._workers[worker]["url"]
            while any(each["url"] == url for each in await self._known()):  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(_POLL_S)
            while not await self.complete():
                if all(each["url"] != url for each in await self._known()):
                    await self._add(self._workers[worker])
                await asyncio.sleep(_POLL_S)

    async def _add(self, worker: dict[str, Any]) -> None:
        try:
            await _asked(self._http, "POST", f"{self.url}/workers", worker)
        except RouterFailed as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    async def complete(self) -> bool:
        healthy = [each["url"] for each in await self._known() if each.get("is_healthy")]
        return all(worker["url"] in healthy for worker in self._workers)

    async def _known(self) -> list[dict[str, Any]]:
        told: dict[str, Any] = await _asked(self._http, "GET", f"{self.url}/workers")
        return list(told["workers"])


@asynccontextmanager
async def loadback(site: Site, folder: Path) -> AsyncIterator[Loadback]:
    """Ready: engines are discovered, their events followed."""
    prefills = _prefills(site.pool)
    (port,) = free_ports(1)
    config = folder / "loadback.yaml"
    config.write_text(yaml.safe_dump(gateway_tree(site, prefills, port)))
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "loadback", "serve", "--config", str(config)]
    async with _started("loadback", url, command, folder, "/readyz"):
        router = Loadback(url, site.http, prefills)
        await router.followed()
        yield router


def gateway_tree(site: Site, prefills: Sequence[dict[str, Any]], port: int) -> dict[str, Any]:
    """Defaults but for what the machine is: a token's bytes, and what kind of prefill it has, whose rate is learned.

    Torch's own attention takes its time for cached tokens, too, and pads every chunk to the whole prompt: long prompts take
    far more than their share. The three were fitted to 2,313 turns that waited for nobody (`--seed 1`).
    """
    model_dir = str(site.pool.prefills[0].spec.model_dir)
    pool = {
        "models": [MODEL],
        "prefill": list(prefills),
        "decode": [{"url": server.url, "name": "d0", "node": NODE} for server in site.pool.decodes],
        "prompt": {"model_dir": model_dir, "cold_deadline_ms": 0},
        "hardware": {"kv_bytes_per_token": _TOKEN_BYTES, **_PREFILL},
    }
    agents = [{"node": NODE, "host": site.peer.host, "port": site.peer.port}]
    return {
        "listen": {"host": HOST, "port": port, "drain_s": 1.0},
        "seed": 1,
        "polls": {"discover_s": 0.1},
        "pools": [pool],
        "agents": agents,
        "log": {"level": "warning"},
    }


@asynccontextmanager
async def smg(site: Site, folder: Path) -> AsyncIterator[Smg]:
    """Ready: it has found all workers healthy."""
    python = str(engine_bin("rivals") / "python")
    port, metrics = free_ports(2)
    url = f"http://{HOST}:{port}"
    command = [python, "-m", "smg", "launch", "--host", HOST, "--port", str(port), "--prometheus-host", HOST]
    command += ["--prometheus-port", str(metrics), "--worker-startup-check-interval", "1", "--policy", "cache_aware"]
    command += ["--log-level", "warn", "--pd-disaggregation"]
    for server in site.pool.prefills:
        command += ["--prefill", server.url, str(server.spec.bootstrap_port)]
    for server in site.pool.decodes:
        command += ["--decode", server.url]
    specs = [
        {"url": server.url, "worker_type": "prefill", "bootstrap_port": server.spec.bootstrap_port}
        for server in site.pool.prefills
    ]
    async with _started("smg", url, command, folder, "/health"):
        router = Smg(url, site.http, specs)
        async with asyncio.timeout(_READY_S):
            while not await router.complete():  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(_POLL_S)
        yield router


@asynccontextmanager
async def _started(name: str, url: str, command: Sequence[str], folder: Path, ready: str) -> AsyncIterator[None]:
    process = await start_process(name, url, command, {}, folder / f"{name}.log")
    try:
        await process.ready(ready, _READY_S)
        yield
    finally:
        await process.stop()


def _prefills(pool: Pool) -> list[dict[str, Any]]:
    return [{"url": server.url, "name": _name(number), "node": NODE} for number, server in enumerate(pool.prefills)]


def _name(worker: int) -> str:
    return f"p{worker}"


def _live(told: dict[str, Any]) -> bool:
    workers = told["workers"]
    return all(each["state"] == "ready" and all(feed["state"] == "live" for feed in each["events"]) for each in workers)


async def _asked(http: httpx.AsyncClient, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """Raises `RouterFailed` and `httpx.HTTPError`."""
    reply = await http.request(method, url, json=body, timeout=_CALL_S)
    if reply.is_error:
        raise RouterFailed(f"{method} {url}: {reply.status_code} {reply.text[:300]}", reply.status_code)
    return reply.json() if reply.content else None
