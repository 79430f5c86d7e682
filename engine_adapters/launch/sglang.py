"""Real SGLang servers on this machine's CPU: command lines, environment variables and a started server.

The flags are those of the engine contract (events with replay, cache report, metrics, decode radix cache, host tier) plus what
a machine without an accelerator needs; idle servers sleep, else each would keep a core busy. Copies and events on the CPU are
the shim's, so timings say nothing about a GPU.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from costmodel.values import Role
from engine_adapters.launch.environments import CPU_SHIM, engine_bin
from engine_adapters.launch.process import EngineProcess, start_process

HOST = "127.0.0.1"

_CPU_FLAGS = shlex.split(
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype bfloat16 --disable-cuda-graph"
    " --mem-fraction-static 0.5 --skip-server-warmup --watchdog-timeout 600 --sleep-on-idle"
)
_CONTRACT_FLAGS = ("--enable-metrics", "--enable-cache-report", "--tool-call-parser", "qwen25")
_HOST_TIER_FLAGS = shlex.split(
    "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through --hicache-io-backend direct"
    " --hicache-mem-layout page_first_direct"
)
_VARIABLES = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1",  # so that a messages call can be given a request id
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MOONCAKE_PROTOCOL": "tcp",
    "MC_FORCE_TCP": "true",
    "MC_TCP_BIND_ADDRESS": HOST,
    "SGLANG_HOST_IP": HOST,
    "HOST_IP": HOST,
    "SGLANG_LOCAL_IP_NIC": "lo",
    # A decode server notices a dead prefill server by this many missed heartbeats. One that is back before (8 s here; the
    # default is 5 s twice) is never missed, and decode goes on talking to its old address: every pair of the two then hangs.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "2",
}


@dataclass(frozen=True, slots=True)
class SglangSpec:
    """One server; all ports are loopback. `kv_port` publishes KV events and `replay_port` replays them."""

    model_dir: Path
    port: int
    kv_port: int
    replay_port: int
    role: Role = Role.UNIFIED
    bootstrap_port: int = 0
    rendezvous_port: int = 0  # of the server's own processes; 0 = it draws one, which can be taken by the time it is bound
    model_name: str = "tiny-agent"
    page_size: int = 16
    context_tokens: int = 32_768
    kv_tokens: int = 65_536
    max_running: int = 16
    chunk_tokens: int = 2048
    host_tier: bool = False
    host_tier_flags: tuple[str, ...] = ()  # beside the contract's, where there is a host tier
    extra_flags: tuple[str, ...] = ()
    python_path: tuple[Path, ...] = ()  # plug-ins for the server to import

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def name(self) -> str:
        return f"sglang-{self.role.value}-{self.port}"


def command(spec: SglangSpec, python: Path) -> list[str]:
    """The launch command for `spec`, with the Python of SGLang's own environment."""
    return [
        *(str(python), "-m", "sglang.launch_server"),
        *("--model-path", str(spec.model_dir), "--served-model-name", spec.model_name),
        *("--host", HOST, "--port", str(spec.port)),
        *("--page-size", str(spec.page_size), "--context-length", str(spec.context_tokens)),
        *("--max-total-tokens", str(spec.kv_tokens), "--max-running-requests", str(spec.max_running)),
        *("--chunked-prefill-size", str(spec.chunk_tokens)),
        *("--kv-events-config", _events_config(spec)),
        *_CPU_FLAGS,
        *_CONTRACT_FLAGS,
        *((*_HOST_TIER_FLAGS, *spec.host_tier_flags) if spec.host_tier else ()),
        *_role_flags(spec),
        *(("--nccl-port", str(spec.rendezvous_port)) if spec.rendezvous_port else ()),
        *spec.extra_flags,
    ]


def variables(python_path: Sequence[Path] = ()) -> dict[str, str]:
    return {**_VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, (CPU_SHIM, *python_path)))}


async def start_sglang(spec: SglangSpec, log_dir: Path) -> EngineProcess:
    """Start one server; it is ready when `/v1/models` answers. The caller owns and stops it."""
    python = engine_bin("sglang") / "python"
    words, added = command(spec, python), variables(spec.python_path)
    return await start_process(spec.name, spec.url, words, added, log_dir / f"{spec.name}.log")


def _events_config(spec: SglangSpec) -> str:
    config = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{spec.kv_port}",
        "replay_endpoint": f"tcp://*:{spec.replay_port}",
        "topic": "kv-events",
        "buffer_steps": 10_000,
    }
    return msgspec.json.encode(config).decode()


def _role_flags(spec: SglangSpec) -> tuple[str, ...]:
    if spec.role is Role.UNIFIED:
        return ()
    pair = ("--disaggregation-mode", spec.role.value, "--disaggregation-transfer-backend", "mooncake")
    port = ("--disaggregation-bootstrap-port", str(spec.bootstrap_port))
    keeps = ("--disaggregation-decode-enable-radix-cache",) if spec.role is Role.DECODE else ()
    return pair + port + keeps
