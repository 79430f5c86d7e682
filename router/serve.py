"""Runs one gateway until a signal: the process behind `loadback serve` and `loadback up`."""

from __future__ import annotations

import time
from random import Random

from router.app import build_app, build_routes
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway
from router.logs import configure_logs
from router.wire.serve import DrainingServer, build_server
from router.wire.serve import run as run_server


def run(config: Config) -> int:
    """Block until SIGTERM or SIGINT, finish running streams, return the exit code."""
    configure_logs(config.log)
    server = make_server(config)
    run_server(server)
    return 0


def make_server(config: Config) -> DrainingServer:
    """A gateway behind its own listener, not yet listening."""
    seed = time.time_ns() if config.seed is None else config.seed
    gateway = Gateway(config, system_clock, Random(seed))
    listen = config.listen
    routes = build_routes(gateway)
    return build_server(
        build_app(gateway, routes),
        routes,
        host=listen.host,
        port=listen.port,
        drain_s=listen.drain_s,
        lifespan="on",
    )
