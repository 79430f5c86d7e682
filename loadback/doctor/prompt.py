"""Looks at a pool's tokenizer: does the model folder load, and does it count a chat's tokens as the engine does.

Counts that differ mean hashes that differ: the index would never match. The probe is one real call of one token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import httpx
import msgspec

from costmodel.values import Role
from engine_adapters.adapters import adapter_for
from engine_adapters.base import AdapterError, Edit, EngineInfo, EngineKind
from engine_adapters.control import call
from engine_adapters.prompt.engine_prompts import CHAT_PATH, EnginePrompts
from engine_adapters.sglang.rooms import fresh_room
from loadback.doctor.check import Check, Target, fail, ok, warn
from router.config.tree import PromptConfig

PROBE_TIMEOUT_S = 60.0
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Reply(msgspec.Struct):
    usage: _Usage


def probe_body(model: str) -> dict[str, object]:
    """A chat with a system prompt and a tool, since engines differ most in how they render tools."""
    messages = [
        {"role": "system", "content": "You are a probe."},
        {"role": "user", "content": "Is anyone there? Ünïcödé, too."},
    ]
    return {"model": model, "messages": messages, "tools": [WEATHER_TOOL], "max_tokens": 1, "temperature": 0}


async def check_prompt(
    http: httpx.AsyncClient,
    pool: str,
    kind: EngineKind,
    config: PromptConfig,
    found: Sequence[tuple[Target, EngineInfo]],
) -> list[Check]:
    loaded = load_folder(pool, kind, config)
    if isinstance(loaded, Check):
        return [loaded]
    model = loaded.model
    checks = [ok(pool, "tokenizer", f"{config.model_dir} loads; prompts as {model.profile.name} makes them")]
    if not model.loop_wise:
        checks.append(warn(pool, "template", "it must be rendered whole each turn", "nothing: 3 to 8 ms per 100,000 tokens"))
    checks += [check for target, info in found[:1] if (check := check_root(target.name, loaded, info)) is not None]
    legs = _legs(found)
    if not legs:
        return [*checks, warn(pool, "token count", "no engine to compare with", "start the pool's engines, then ask again")]
    body = probe_body(next((info.models[0] for _, info in legs if info.models), "default"))
    ours = len(model.encode(model.render(body)))
    return [*checks, await _compare(http, pool, body, ours, legs)]


def load_folder(pool: str, kind: EngineKind, config: PromptConfig) -> EnginePrompts | Check:
    """What the folder holds, or the check that failed."""
    model_dir = Path(config.model_dir)
    if not model_dir.is_dir():
        fix = "correct prompt.model_dir, or bring the engines' model folder (tokenizer and chat template) there"
        return fail(pool, "tokenizer", f"prompt.model_dir: no such folder: {model_dir}", fix)
    try:
        return EnginePrompts.open(kind, model_dir, fast=config.fast, hash_seed=config.hash_seed)
    except (OSError, ValueError) as error:
        return fail(pool, "tokenizer", str(error), "give the engines' own model folder as prompt.model_dir")


def check_root(worker: str, prompts: EnginePrompts, info: EngineInfo) -> Check | None:
    """None where this engine's block ids can be derived."""
    try:
        prompts.root(info, None)
    except ValueError as error:
        return fail(worker, "block ids", str(error), "until then residency goes by lineage")
    return None


async def _compare(
    http: httpx.AsyncClient, pool: str, body: dict[str, object], ours: int, legs: Sequence[tuple[Target, EngineInfo]]
) -> Check:
    try:
        theirs = await _engine_count(http, body, legs)
    except AdapterError as error:
        return warn(pool, "token count", f"the probe failed: {error}", "look at the engine's log")
    if theirs == ours:
        return ok(pool, "token count", f"the engine counts {theirs} tokens for a probe, as we do")
    fix = "give the engine's own model folder and chat template; until then blocks will not match and lineage is used"
    return fail(pool, "token count", f"the engine counts {theirs} tokens for a probe, we {ours}", fix)


def _legs(found: Sequence[tuple[Target, EngineInfo]]) -> list[tuple[Target, EngineInfo]]:
    """One unified worker, or one prefill and one decode worker; the last one's reply counts."""
    first = {target.role: (target, info) for target, info in reversed(found)}
    if Role.UNIFIED in first:
        return [first[Role.UNIFIED]]
    return [first[Role.PREFILL], first[Role.DECODE]] if {Role.PREFILL, Role.DECODE} <= set(first) else []


async def _engine_count(http: httpx.AsyncClient, body: dict[str, object], legs: Sequence[tuple[Target, EngineInfo]]) -> int:
    prefill, info = legs[0]
    room = fresh_room(SystemRandom(), info.dp_size) if len(legs) > 1 else None
    edit = Edit(
        path=CHAT_PATH,
        stream=False,
        rid=secrets.token_hex(16),
        bootstrap_host=prefill.bootstrap_host,
        bootstrap_port=info.bootstrap_port,
        bootstrap_room=room,
    )
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        replies = await asyncio.gather(*(_send(http, target, body, edit) for target, _ in legs))
    return replies[-1]


async def _send(http: httpx.AsyncClient, target: Target, body: dict[str, object], edit: Edit) -> int:
    added = adapter_for(target.kind).members(msgspec.structs.replace(edit, leg=target.role))
    members = msgspec.json.decode(b"{" + added + b"}", type=dict[str, object])
    reply = await call(http, target.endpoint, CHAT_PATH, method="POST", body=body | members, timeout_s=PROBE_TIMEOUT_S)
    try:
        return msgspec.json.decode(reply.content, type=_Reply).usage.prompt_tokens
    except msgspec.MsgspecError as error:
        raise AdapterError(f"{target.endpoint.url}{CHAT_PATH} answered without usage: {error}") from error
