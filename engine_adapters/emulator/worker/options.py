"""Everything that is fixed about one emulated worker when it starts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle

SGLANG_VERSION = "0.5.23"  # whose wire is spoken
ENGINE_NAME = "loadback-emulator"
DEFAULT_MODEL_FOLDER = Path(__file__).resolve().parents[3] / "configs" / "models" / "tiny-agent"


class WorkerOptions(msgspec.Struct, frozen=True):
    """Ports are TCP on `host`; None switches the service off."""

    port: int
    host: str = "127.0.0.1"
    kv_port: int | None = None
    kv_replay_port: int | None = None
    kv_topic: str = "kv-events"
    kv_buffer_steps: int = 10_000
    bootstrap_port: int = 8998
    served_model_name: str = "tiny"
    model_folder: Path = DEFAULT_MODEL_FOLDER
    api_key: str | None = None
    admin_key: str | None = None
    l3_socket: Path | None = None  # of the node agent whose pool is this worker's L3
    max_requests: int = 10_000  # waiting and running; more are told that the queue is full
    cache_report: bool = True
    params: EngineParams = EngineParams()
    style: ReplyStyle = ReplyStyle()
    handshake_attempts: int = 15  # a decode worker's tries to reach an absent prefill worker
    handshake_gap_ms: float = 1_000.0
    lost_peer_ms: float = 7_000.0  # until a decode worker gives up on a prefill worker that died
    pair_timeout_ms: float = 300_000.0  # how long either half waits for the other
