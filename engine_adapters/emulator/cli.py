"""The emulator's command line. Flags have SGLang's names where SGLang has the same thing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import uvloop

from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.server import serve
from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER, WorkerOptions

_ROLES = {"unified": EngineRole.UNIFIED, "prefill": EngineRole.PREFILL, "decode": EngineRole.DECODE}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one emulated SGLang worker until SIGTERM."""
    uvloop.run(serve(options_of(build_parser().parse_args(arguments))))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine_adapters.emulator",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    defaults, add = EngineParams(), parser.add_argument
    add("--port", type=int, required=True, help="HTTP port")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--role", choices=sorted(_ROLES), default="unified", help="which half of the work this worker does")
    add("--kv-port", type=int, default=0, help="port of the KV event publisher, 0 for none")
    add("--kv-replay-port", type=int, default=0, help="port of the replay socket, 0 for --kv-port + 1")
    add("--bootstrap-port", type=int, default=8998, help="port of a prefill worker's bootstrap server")
    add("--served-model-name", default="tiny", help="the model's name")
    add("--model-dir", type=Path, default=DEFAULT_MODEL_FOLDER, help="folder with tokenizer, config and chat template")
    add("--api-key", help="bearer token that every route but health and metrics asks for")
    add("--admin-api-key", help="bearer token for flushes and aborts")
    add("--page-size", type=int, default=defaults.page_tokens, help="tokens a page")
    add("--context-length", type=int, default=262_144, help="longest prompt and reply together, in tokens")
    add("--kv-tokens", type=int, default=524_288, help="tokens that the device cache holds")
    add("--l2-tokens", type=int, default=0, help="tokens that the host cache holds, 0 for none")
    add("--l3-socket", type=Path, help="Unix socket of a node agent (loadback agent) whose pool is the third tier")
    add("--kv-bytes-per-token", type=int, default=defaults.kv_bytes_per_token, help="KV cache of a token, in all tiers")
    add("--max-running-requests", type=int, default=defaults.max_running, help="requests that decode at once")
    add("--max-requests", type=int, default=10_000, help="requests that may wait and run, beyond which it answers 503")
    add("--chunked-prefill-size", type=int, default=defaults.chunk_tokens, help="tokens of one prefill batch")
    add("--decode-radix-cache", action="store_true", help="a decode worker keeps a cache and publishes events")
    add("--speed", type=float, default=1.0, help="how many times faster than the engine it imitates")
    add("--prefill-base-ms", type=float, default=defaults.prefill_base_ms, help="fixed time of a prefill batch")
    add("--prefill-ms-per-token", type=float, default=defaults.prefill_ms_per_token, help="time of one uncached prompt token")
    add("--decode-base-ms", type=float, default=defaults.decode_base_ms, help="fixed time of a decode step")
    add("--seed", type=int, default=0, help="what the model says depends on it")
    add("--tool-rounds", type=int, default=2, help="tool calls after each message of the user")
    add("--reply-words", type=int, default=40, help="longest text reply in words")
    add("--lost-peer-ms", type=float, default=7_000.0, help="until a decode worker gives up on a dead prefill worker")
    add("--handshake-attempts", type=int, default=15, help="a decode worker's tries to reach an absent prefill worker")
    add("--handshake-gap-ms", type=float, default=1_000.0, help="time between those tries")
    return parser


def options_of(args: argparse.Namespace) -> WorkerOptions:
    params = EngineParams(
        role=_ROLES[args.role],
        page_tokens=args.page_size,
        kv_tokens=args.kv_tokens,
        host_kv_tokens=args.l2_tokens,
        max_running=args.max_running_requests,
        chunk_tokens=args.chunked_prefill_size,
        context_tokens=args.context_length,
        kv_bytes_per_token=args.kv_bytes_per_token,
        prefill_base_ms=args.prefill_base_ms,
        prefill_ms_per_token=args.prefill_ms_per_token,
        decode_base_ms=args.decode_base_ms,
        decode_keeps_cache=args.decode_radix_cache,
        speed=args.speed,
    )
    return WorkerOptions(
        port=args.port,
        host=args.host,
        kv_port=args.kv_port or None,
        kv_replay_port=(args.kv_replay_port or args.kv_port + 1) if args.kv_port else None,
        bootstrap_port=args.bootstrap_port,
        served_model_name=args.served_model_name,
        model_folder=args.model_dir,
        l3_socket=args.l3_socket,
        max_requests=args.max_requests,
        api_key=args.api_key,
        admin_key=args.admin_api_key,
        params=params,
        style=ReplyStyle(seed=args.seed, max_words=args.reply_words, tool_rounds=args.tool_rounds),
        handshake_attempts=args.handshake_attempts,
        handshake_gap_ms=args.handshake_gap_ms,
        lost_peer_ms=args.lost_peer_ms,
    )
