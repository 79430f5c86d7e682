"""Runs one gateway until a signal: the process behind `loadback serve` and `loadback up`."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from random import Random

import structlog

from router.app import build_app, build_routes
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.logs import configure_logs
from router.wire.serve import DrainingServer, build_server
from router.wire.serve import run as run_server

_log = structlog.get_logger(__name__)
_SWITCH_S = 0.0005  # how long a tokenizer thread may keep the interpreter from the event loop; CPython's 5 ms would show as lag


def run(config: Config) -> int:
    """Block until SIGTERM or SIGINT, finish running streams, return the exit code."""
    configure_logs(config.log)
    sys.setswitchinterval(_SWITCH_S)
    server = make_server(config)
    run_server(server)
    _log.info("stopped")
    return 0


def make_server(config: Config) -> DrainingServer:
    """A gateway behind its own listener, not yet listening."""
    seed = time.time_ns() if config.seed is None else config.seed
    gateway = Gateway(config, system_clock, Random(seed))
    listen = config.listen
    routes = build_routes(gateway)
    server = build_server(
        build_app(gateway, routes),
        routes,
        host=listen.host,
        port=listen.port,
        drain_s=listen.drain_s,
        lifespan="on",
        on_started=lambda: _log.info("listening", url=f"http://{listen.host}:{server.port}", **_about(config)),
    )
    return server


def _about(config: Config) -> dict[str, object]:
    workers = sum(len(pool.workers()) for pool in config.pools)
    return {"version": version("loadback"), "pools": len(config.pools), "workers": workers, "policy": config.policy.name}
