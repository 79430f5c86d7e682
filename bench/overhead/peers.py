"""The routers that are compared, and how each is started in front of the mock workers with its cache-aware policy.

Versions: whatever `scripts/envs/rivals` pins, and the system's nginx.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from engine_adapters.launch.environments import EngineNotInstalled, engine_bin

HOST = "127.0.0.1"
MODEL = "mock-model"
_BOOTSTRAP_PORT = "8998"  # nobody listens there: mock workers exchange nothing


class NotThere(Exception):
    """The peer is not installed. The message says how to get it."""


class Ports(NamedTuple):
    router: int
    metrics: int
    plain: tuple[int, ...]  # unified workers; the first two serve as decode workers of a pair
    prefill: tuple[int, ...]

    @property
    def decode(self) -> tuple[int, ...]:
        return self.plain[:2]


class Peer(msgspec.Struct, frozen=True):
    """`kind` names the program; `pd`: in front of prefill and decode workers instead of unified ones."""

    name: str
    kind: str
    pd: bool = False

    @property
    def routes(self) -> bool:
        """False for the workers themselves, measured without anything in between."""
        return self.kind != "direct"

    def command(self, ports: Ports, folder: Path) -> list[str]:
        """What starts it on `ports.router`; its files go to `folder`. Raises NotThere."""
        if self.kind == "loadback":
            return _loadback(ports, folder, self.pd)
        if self.kind == "nginx":
            return _nginx(ports, folder)
        return _rival(self.kind, ports, self.pd)


PEERS = (
    Peer("loadback", "loadback"),
    Peer("loadback_pd", "loadback", pd=True),
    Peer("smg", "smg"),
    Peer("smg_pd", "smg", pd=True),
    Peer("sglang-router", "sglang-router"),
    Peer("sglang-router_pd", "sglang-router", pd=True),
    Peer("nginx", "nginx"),
    Peer("direct", "direct"),
)


def _loadback(ports: Ports, folder: Path, pd: bool) -> list[str]:
    """Thread lineage, index and cost decision are on, and the engines are polled as by default; no tokenizer."""
    if pd:
        workers = {"prefill": _workers(ports.prefill), "decode": _workers(ports.decode)}
    else:
        workers = {"unified": _workers(ports.plain)}
    tree = {
        "listen": {"host": HOST, "port": ports.router},
        "pools": [{"engine": "sglang", **workers}],
        "policy": {"name": "cost"},
        "log": {"level": "warning"},
    }
    config = folder / "loadback.yaml"
    config.write_text(yaml.safe_dump(tree, sort_keys=False))
    return [sys.executable, "-m", "loadback", "serve", "--config", str(config)]


def _workers(ports: tuple[int, ...]) -> list[dict[str, str]]:
    return [{"url": url} for url in _urls(ports)]


def _rival(kind: str, ports: Ports, pd: bool) -> list[str]:
    try:
        python = str(engine_bin("rivals") / "python")  # both install a command called smg: modules are not mixed up
    except EngineNotInstalled as error:
        raise NotThere(str(error)) from error
    programs = {
        "smg": [python, "-m", "smg", "launch"],
        "sglang-router": [python, "-m", "sglang_router.launch_router"],
    }
    options = ["--host", HOST, "--port", str(ports.router), "--prometheus-host", HOST, "--prometheus-port", str(ports.metrics)]
    options += ["--worker-startup-check-interval", "1", "--policy", "cache_aware", "--log-level", "warn"]
    if not pd:
        return [*programs[kind], *options, "--worker-urls", *_urls(ports.plain)]
    prefills = [word for url in _urls(ports.prefill) for word in ("--prefill", url, _BOOTSTRAP_PORT)]
    decodes = [word for url in _urls(ports.decode) for word in ("--decode", url)]
    return [*programs[kind], *options, "--pd-disaggregation", *prefills, *decodes]


def _nginx(ports: Ports, folder: Path) -> list[str]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NotThere("nginx is not installed: apt-get install nginx-light")
    config = folder / "nginx.conf"
    servers = " ".join(f"server {HOST}:{port};" for port in ports.plain)
    config.write_text(_NGINX.format(folder=folder, host=HOST, port=ports.router, servers=servers))
    return [program, "-c", str(config), "-e", str(folder / "nginx-error.log")]


def _urls(ports: tuple[int, ...]) -> list[str]:
    return [f"http://{HOST}:{port}" for port in ports]


_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 8000; }}
http {{
  access_log off;
  client_max_body_size 600m;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_buffering off;
  keepalive_requests 1000000;
  upstream workers {{ least_conn; {servers} keepalive 512; keepalive_requests 1000000; }}
  server {{ listen {host}:{port} backlog=4096; location / {{ proxy_pass http://workers; }} }}
}}
"""
