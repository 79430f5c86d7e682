"""An embedded pool's shape, names, ports and the configuration made for the gateway."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import yaml

from costmodel.values import Role
from engine_adapters.emulator.cli import build_parser, options_of
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.launch.pool import Pool, Server, pool_specs
from engine_adapters.launch.process import EngineProcess
from engine_adapters.launch.sglang import SglangSpec
from kvtier.prefetch.params import Mode
from kvtier.wire.messages import Peer
from loadback.engines import emulator_command, names, real_members
from loadback.pool_spec import KV_BYTES_PER_TOKEN, NODE, EngineChoice, GatewaySpec, Member, PoolSpec
from loadback.stack import config_yaml
from router.config.load import parse_config
from router.config.tree import HardwareConfig

MEMBERS = (
    Member("p0", Role.PREFILL, "http://127.0.0.1:1", 1, Path("p0.log"), 4, pooled=True),
    Member("p1", Role.PREFILL, "http://127.0.0.1:5", 2, Path("p1.log"), 8, pooled=True),
    Member("d0", Role.DECODE, "http://127.0.0.1:9", 3, Path("d0.log")),
)


def test_roles_and_names() -> None:
    assert names(PoolSpec(prefills=2, decodes=1).roles()) == ["p0", "p1", "d0"]
    assert names(PoolSpec(prefills=2, decodes=0).roles()) == ["u0", "u1"]
    assert PoolSpec(EngineChoice.SGLANG, 2, 1).title == "2P1D of real SGLang"


def test_the_written_file_reads_back_as_the_same_pool() -> None:
    spec, gateway = PoolSpec(), GatewaySpec(port=8123, policy="sticky", resume_gap_s=2.0)
    text = config_yaml(spec, gateway, MEMBERS, Peer(NODE, "127.0.0.1", 77))
    config = parse_config(text, "gateway.yaml", {})
    pool = config.pools[0]
    assert [(role, worker.worker_id, worker.url, worker.bootstrap_port) for role, worker in pool.workers()] == [
        (member.role, member.name, member.url, member.bootstrap_port) for member in MEMBERS
    ]
    assert (config.listen.port, config.policy.name, config.threads.resume_gap_s) == (8123, "sticky", 2.0)
    assert "breaker" not in yaml.safe_load(text)
    assert [(agent.node, agent.port) for agent in config.agents] == [(NODE, 77)]
    assert [worker.node for _, worker in pool.workers()] == [NODE, NODE, None], "a decode worker reads nothing from there"
    assert config.prefetch.mode is Mode.ON
    assert pool.hardware.kv_bytes_per_token == KV_BYTES_PER_TOKEN


def test_launched_servers_become_a_pool_that_the_gateway_takes() -> None:
    process = cast(EngineProcess, SimpleNamespace(pid=7, log=Path("x.log")))
    template = SglangSpec(model_dir=Path("m"), port=0, kv_port=0, replay_port=0)
    specs = pool_specs(template, [Role.PREFILL, Role.PREFILL, Role.DECODE], range(1, 16))
    servers = tuple(Server(spec, process, Path("logs")) for spec in specs)
    shape = PoolSpec(EngineChoice.SGLANG, 2, 1)
    members = real_members(shape, Pool(prefills=servers[:2], decodes=servers[2:]))
    config = parse_config(config_yaml(shape, GatewaySpec(), members), "gateway.yaml", {})
    pool = config.pools[0]
    assert (config.agents, config.prefetch.mode, pool.hardware) == ((), Mode.OFF, HardwareConfig())
    assert [(role, worker.bootstrap_port) for role, worker in pool.workers()] == [
        (Role.PREFILL, 4),
        (Role.PREFILL, 9),
        (Role.DECODE, None),
    ]


def test_a_wildcard_address_is_reached_over_loopback() -> None:
    assert GatewaySpec("0.0.0.0", 80).url == "http://127.0.0.1:80"
    assert GatewaySpec("::", 80).url == "http://[::1]:80"


def test_emulator_flags_are_those_its_own_parser_knows() -> None:
    def options_for(socket: Path | None) -> WorkerOptions:
        command = emulator_command(PoolSpec(), Role.DECODE, [1, 2, 3, 4], socket)
        return options_of(build_parser().parse_args(command[command.index("engine_adapters.emulator") + 1 :]))

    options = options_for(None)
    assert (options.port, options.kv_port, options.kv_replay_port, options.bootstrap_port) == (1, 2, 3, 4)
    assert options.params.decode_keeps_cache
    assert options.params.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert (options.l3_socket, options_for(Path("n.sock")).l3_socket) == (None, Path("n.sock"))
