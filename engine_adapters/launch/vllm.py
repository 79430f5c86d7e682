"""A real vLLM server on this machine's CPU, as a plain OpenAI pool with KV events."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine_adapters.base import EventFeed
from engine_adapters.launch.environments import engine_bin
from engine_adapters.launch.process import EngineProcess, start_process

HOST = "127.0.0.1"

_FLAGS = shlex.split(
    "--dtype bfloat16 --max-num-seqs 16 --max-num-batched-tokens 2048 --enforce-eager --enable-prefix-caching"
    " --enable-prompt-tokens-details --enable-auto-tool-choice --tool-call-parser hermes"
)
_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True)
class VllmSpec:
    """One server; all ports are loopback. On a CPU the block size must be a multiple of 32."""

    model_dir: Path
    port: int
    kv_port: int
    replay_port: int
    model_name: str = "tiny-agent"
    block_size: int = 32
    context_tokens: int = 32_768
    extra_flags: tuple[str, ...] = ()
    python_path: tuple[Path, ...] = ()  # plug-ins for the server to import

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def name(self) -> str:
        return f"vllm-{self.port}"

    @property
    def event_feed(self) -> EventFeed:
        """vLLM does not tell this over HTTP: it belongs into the gateway's configuration."""
        return EventFeed(0, f"tcp://{HOST}:{self.kv_port}", f"tcp://{HOST}:{self.replay_port}")


def command(spec: VllmSpec, executables: Path) -> list[str]:
    return [
        *(str(executables / "vllm"), "serve", str(spec.model_dir), "--served-model-name", spec.model_name),
        *("--host", HOST, "--port", str(spec.port)),
        *("--block-size", str(spec.block_size), "--max-model-len", str(spec.context_tokens)),
        *("--kv-events-config", _events_config(spec)),
        *_FLAGS,
        *spec.extra_flags,
    ]


def variables(spec: VllmSpec) -> dict[str, str]:
    path = {"PYTHONPATH": os.pathsep.join(map(str, spec.python_path))} if spec.python_path else {}
    return _VARIABLES | path


async def start_vllm(spec: VllmSpec, log_dir: Path) -> EngineProcess:
    """Start one server; it is ready when `/v1/models` answers. The caller owns and stops it."""
    words = command(spec, engine_bin("vllm"))
    return await start_process(spec.name, spec.url, words, variables(spec), log_dir / f"{spec.name}.log")


def _events_config(spec: VllmSpec) -> str:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{spec.kv_port}",
        "replay_endpoint": f"tcp://*:{spec.replay_port}",
        "topic": "kv-events",
        "buffer_steps": 10_000,
    }
    return msgspec.json.encode(config).decode()
