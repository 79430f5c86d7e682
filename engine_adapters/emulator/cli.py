"""The emulator's command line. Flags have SGLang's names where SGLang has the same thing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import uvloop

from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.reply.plan import ReplyStyle
from engine_adapters.emulator.server import serve
from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER, WorkerOptions
from engine_adapters.emulator.worker.worker import Worker
from engine_adapters.launch.listening import CannotListen, check_port

_ROLES = {"unified": EngineRole.UNIFIED, "prefill": EngineRole.PREFILL, "decode": EngineRole.DECODE}


class CannotStart(Exception):
    """The message says which option to change."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one emulated SGLang worker until SIGTERM."""
    args = build_parser().parse_args(arguments)
    try:
        worker = worker_of(args)
    except CannotStart as error:
        raise SystemExit(f"emulator: {error}") from error
    uvloop.run(serve(worker))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine_adapters.emulator",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    defaults, add = EngineParams(), parser.add_argument
    add("--port", type=port, required=True, help="HTTP port")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--role", choices=sorted(_ROLES), default="unified", help="which half of the work this worker does")
    add("--kv-port", type=port, default=0, help="port of the KV event publisher, 0 for none")
    add("--kv-replay-port", type=port, default=0, help="port of the replay socket, 0 for --kv-port + 1")
    add("--bootstrap-port", type=port, default=8998, help="port of a prefill worker's bootstrap server")
    add("--served-model-name", default="tiny", help="the model's name")
    add("--model-dir", type=Path, default=DEFAULT_MODEL_FOLDER, help="folder with tokenizer, config and chat template")
    add("--api-key", help="bearer token that every route but health and metrics asks for")
    add("--admin-api-key", help="bearer token for flushes and aborts")
    add("--page-size", type=count, default=defaults.page_tokens, help="tokens a page")
    add("--context-length", type=count, default=262_144, help="longest prompt and reply together, in tokens")
    add("--kv-tokens", type=count, default=524_288, help="tokens that the device cache holds")
    add("--l2-tokens", type=size, default=0, help="tokens that the host cache holds, 0 for none")
    add("--l3-socket", type=Path, help="Unix socket of a node agent (loadback agent) whose pool is the third tier")
    add("--kv-bytes-per-token", type=count, default=defaults.kv_bytes_per_token, help="KV cache of a token, in all tiers")
    add("--max-running-requests", type=count, default=defaults.max_running, help="requests that decode at once")
    add("--max-requests", type=count, default=10_000, help="requests that may wait and run, beyond which it answers 503")
    add("--chunked-prefill-size", type=count, default=defaults.chunk_tokens, help="tokens of one prefill batch")
    add("--decode-radix-cache", action="store_true", help="a decode worker keeps a cache and publishes events")
    add("--speed", type=speed, default=1.0, help="how many times faster than the engine it imitates")
    add("--prefill-base-ms", type=milliseconds, default=defaults.prefill_base_ms, help="fixed time of a prefill batch")
    add(
        "--prefill-ms-per-token",
        type=milliseconds,
        default=defaults.prefill_ms_per_token,
        help="time of an uncached token",
    )
    add("--decode-base-ms", type=milliseconds, default=defaults.decode_base_ms, help="fixed time of a decode step")
    add("--seed", type=int, default=0, help="what the model says depends on it")
    add("--tool-rounds", type=size, default=2, help="tool calls after each message of the user")
    add("--reply-words", type=count, default=40, help="longest text reply in words")
    add("--lost-peer-ms", type=milliseconds, default=7_000.0, help="until a decode worker gives up on a dead prefill worker")
    add("--handshake-attempts", type=count, default=15, help="a decode worker's tries to reach an absent prefill worker")
    add("--handshake-gap-ms", type=milliseconds, default=1_000.0, help="time between those tries")
    return parser


def worker_of(args: argparse.Namespace) -> Worker:
    """Not yet started. Raises `CannotStart` in one line that names the option."""
    try:
        options = options_of(args)
    except ValueError as error:
        raise CannotStart(f"--kv-tokens: {error}") from error
    _check_ports(options)
    try:
        return Worker(options)
    except (ValueError, OSError) as error:
        raise CannotStart(f"--model-dir: {' '.join(str(error).split())}") from error


def _check_ports(options: WorkerOptions) -> None:
    wanted = [("--port", options.host, options.port)]
    if options.params.role is EngineRole.PREFILL:
        wanted.append(("--bootstrap-port", options.host, options.bootstrap_port))
    events = (("--kv-port", options.kv_port), ("--kv-replay-port", options.kv_replay_port))
    wanted += [(option, "0.0.0.0", port) for option, port in events if port is not None]
    taken: dict[int, str] = {}
    for option, host, port in wanted:
        if port and port in taken:
            raise CannotStart(f"{option} and {taken[port]} are both {port}: choose another {option}")
        taken[port] = option
        try:
            check_port(host, port, option)
        except CannotListen as error:
            raise CannotStart(str(error)) from error


def port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: give one up to 65535")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: give 1 or more")
    return value


def size(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is too small: give 0 or more")
    return value


def milliseconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time: give 0 ms or more")
    return value


def speed(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no speed: give more than 0")
    return value


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
