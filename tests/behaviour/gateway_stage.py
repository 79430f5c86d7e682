"""The stage of every behaviour test: a real gateway on its own socket in front of scripted engines, plain or disaggregated."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fake_engine import MODEL, FakeEngine, Rooms, Script
from raw_client import Call, ask, send
from waiting import until

from router.app import build_app, build_routes
from router.clock import Clock, system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.wire.serve import DrainingServer, build_server

PLAIN, PD = "plain", "pd"
_QUIET_POLLS = {"loads_ms": 60_000, "health_s": 60, "discover_s": 0.02}


@dataclass(slots=True)
class Stage:
    """`replying` engines answer clients (unified or decode), `prefill` is empty on a plain pool."""

    gateway: Gateway
    server: DrainingServer
    replying: list[FakeEngine]
    prefill: list[FakeEngine]
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def engines(self) -> list[FakeEngine]:
        return [*self.prefill, *self.replying]

    @property
    def port(self) -> int:
        return self.server.port

    def body(self, **members: Any) -> dict[str, Any]:
        """A chat that no other call has sent."""
        number = next(self._numbers)
        return {"model": MODEL, "messages": [{"role": "user", "content": f"request {number}"}], **members}

    async def send(self, **members: Any) -> Call:
        return await send(self.port, self.body(**members))

    async def ask(self, **members: Any) -> Call:
        return await ask(self.port, self.body(**members))

    def script(self, engines: list[FakeEngine], script: Script) -> None:
        for engine in engines:
            engine.script = script

    def script_first(self, engines: list[FakeEngine], script: Script) -> None:
        """Whichever of them is called first follows `script`, once."""
        shared = [script]
        for engine in engines:
            engine.scripts = shared

    def go(self, engines: list[FakeEngine] | None = None) -> None:
        for engine in self.engines if engines is None else engines:
            engine.go()

    def calls(self, engines: list[FakeEngine] | None = None) -> int:
        return sum(len(engine.calls) for engine in (self.engines if engines is None else engines))

    @property
    def idle(self) -> bool:
        """Nothing is left waiting: neither on an engine nor in the gateway's own counts."""
        pools = self.gateway.fleet.pools.values()
        booked = [worker.inflight for pool in pools for worker in pool.workers.values()]
        admitted = [pool.admission.running + pool.admission.waiting for pool in pools]
        return not any((*booked, *admitted, *(engine.active for engine in self.engines)))

    async def settled(self) -> None:
        await until(lambda: self.idle, "nothing left waiting")


StageMaker = Callable[..., Awaitable[Stage]]


async def open_stage(
    exits: AsyncExitStack,
    kind: str,
    *,
    workers: int = 0,
    pool: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    clock: Clock = system_clock,
    **sections: Any,
) -> Stage:
    """`workers` of each role; `worker`, `pool` and `sections` go into the configuration. Closed by `exits`."""
    rooms = Rooms()
    roles = ["decode"] * (workers or 2) if kind == PD else ["null"] * (workers or 3)
    replying = [FakeEngine(role, rooms=rooms) for role in roles]
    prefill = [FakeEngine("prefill", rooms=rooms) for _ in range(workers or 2)] if kind == PD else []
    for engine in (*replying, *prefill):
        await engine.open()
        exits.push_async_callback(engine.close)
    groups = {"prefill": prefill, "decode": replying} if kind == PD else {"unified": replying}
    workers_of = {name: [{"url": engine.url, **(worker or {})} for engine in group] for name, group in groups.items()}
    pools = [{"engine": "sglang", **workers_of, **(pool or {})}]
    config = Config.model_validate({"polls": _QUIET_POLLS, "seed": 1, **sections, "pools": pools})
    gateway = Gateway(config, clock, Random(1))
    server = await serve_gateway(exits, gateway)
    return Stage(gateway, server, replying, prefill)


async def serve_gateway(exits: AsyncExitStack, gateway: Gateway) -> DrainingServer:
    """Until `exits` close, once its engines are known."""
    routes = build_routes(gateway)
    server = build_server(build_app(gateway, routes), routes, port=0, drain_s=1.0, lifespan="on")
    serving = asyncio.create_task(server.serve())
    exits.push_async_callback(_stop, server, serving)
    await until(lambda: server.started or serving.done(), "server started")
    await until(lambda: all(worker.info for worker in gateway.fleet.workers), "engines discovered")
    return server


async def _stop(server: DrainingServer, serving: asyncio.Task[None]) -> None:
    server.stop()
    await serving
