"""The wire probes that are put to real SGLang and to the emulator alike, one function each.

A probe starts from empty caches, sends what it is about, and returns what it saw. Prompts for cache probes are token ids, so
that both engines are asked for the same blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random

import httpx
from observation import Observation, of_events, of_loads, of_reply, under
from pd_pair import CHAT, COMPLETIONS, MESSAGES, MODEL, PATHS, RESPONSES, SGLANG, Reply, body_for, send, splice
from stage import PAGE, Stage, events_in, replayed

from engine_adapters.base import Endpoint
from kvtier.hashing.sglang import event_ids

Probe = Callable[[Stage], Awaitable[Observation]]
Body = dict[str, object]

FAKE_HOST = "2.2.2.2"
NO_ANSWER_S = 6.0
LATE_ANSWER_S = 30.0
WORDS = "Write one line about the weather. " * 12
LONG_WORDS = "x1 " * 6_000  # 12,000 tokens: their prefill takes seconds
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def token_prompt(seed: int, tokens: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(300, 4000) for _ in range(tokens)]


def token_body(prompt: Sequence[int], tokens: int = 4, **more: object) -> Body:
    common: Body = {"model": MODEL, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return common | more


async def ask(stage: Stage, path: str, body: Body, rid: str | None = None) -> Observation:
    calls = stage.pair.legs(path, body, rid or stage.pair.rid(path))
    prefill, decode = await asyncio.gather(*(bounded(call, LATE_ANSWER_S) for call in calls))
    return under("prefill", prefill) | under("decode", decode)


async def bounded(call: Awaitable[Reply], limit_s: float = NO_ANSWER_S) -> Observation:
    """A reply, or that none came in time, or that the connection was closed without one."""
    try:
        async with asyncio.timeout(limit_s):
            return of_reply(await call)
    except TimeoutError:
        return {"status": "no answer"}
    except httpx.HTTPError:
        return {"status": "connection closed"}


async def leg(stage: Stage, endpoint: Endpoint, path: str, body: Body, members: Body | None = None) -> Reply:
    return await send(stage.http, endpoint.url + path, splice(body | (members or {}), b""))


def room(stage: Stage, number: int, **more: object) -> Body:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": stage.pair.bootstrap_port, "bootstrap_room": number, **more}


async def watched(stage: Stage, prompts: Sequence[Sequence[int]], act: Callable[[], Awaitable[Observation]]) -> Observation:
    """What `act` sees, with the events and the change of load that it causes on both servers."""
    feeds = {"prefill": stage.prefill_feed, "decode": stage.decode_feed}
    endpoints = {"prefill": stage.pair.prefill, "decode": stage.pair.decode}
    first = {name: len(await replayed(feed)) for name, feed in feeds.items()}
    before = {name: await stage.loads(endpoint) for name, endpoint in endpoints.items()}
    seen = await act()
    await stage.idle()
    blocks = [event_ids(prompt, PAGE) for prompt in prompts]
    for name, feed in feeds.items():
        seen |= under(name, of_events(events_in(await replayed(feed, first[name])), blocks))
        seen |= under(name, of_loads(before[name], await stage.loads(endpoints[name])))
    return seen


async def dialogue(stage: Stage, path: str, stream: bool) -> Observation:
    """Cold, then warm."""
    length = {"ignore_eos": True} if path in (CHAT, COMPLETIONS) else {}  # what the model says shall not matter
    body = body_for(path, WORDS, tokens=5, stream=stream, **length)
    return under("cold", await ask(stage, path, body)) | under("warm", await ask(stage, path, body))


async def tools(stage: Stage, stream: bool) -> Observation:
    body = body_for(CHAT, "What is the weather in Oslo?", tokens=200, stream=stream, tools=TOOLS)
    return await ask(stage, CHAT, body)


def wanting_usage(path: str, stream: bool) -> Body:
    return {"stream_options": {"include_usage": True}} if stream and path in (CHAT, COMPLETIONS) else {}


async def decode_had_more(stage: Stage) -> Observation:
    """Decode still has what prefill has lost: its reply tells the larger figure."""
    prompt = token_prompt(7, 336)
    await stage.pair.ask(COMPLETIONS, token_body(prompt[:100]))
    await stage.pair.ask(COMPLETIONS, token_body(prompt))
    await stage.idle()
    await SGLANG.flush_cache(stage.http, stage.pair.prefill, timeout_s=30.0)
    await stage.pair.ask(COMPLETIONS, token_body(prompt[:200]))
    return await watched(stage, [prompt], partial(ask, stage, COMPLETIONS, token_body(prompt)))


async def missing_room(stage: Stage, path: str, stream: bool) -> Observation:
    body = body_for(path, WORDS, stream=stream) | wanting_usage(path, stream)
    prefill = await bounded(leg(stage, stage.pair.prefill, path, body))
    return under("prefill", prefill) | under("decode", await bounded(leg(stage, stage.pair.decode, path, body)))


async def together(stage: Stage, body: Body, members: Body) -> Observation:
    """Both legs by hand, each within the bound; what is left waiting is aborted."""
    rid = stage.pair.rid(CHAT)
    calls = [bounded(leg(stage, end, CHAT, body, members | {"rid": rid})) for end in (stage.pair.prefill, stage.pair.decode)]
    prefill, decode = await asyncio.gather(*calls)
    for each in (rid, f"{rid}_0", f"{rid}_1"):
        await stage.pair.abort(each)
    await stage.idle()
    return under("prefill", prefill) | under("decode", decode)


async def room_zero(stage: Stage) -> Observation:
    return await together(stage, body_for(CHAT, WORDS), room(stage, 0))


async def two_choices(stage: Stage) -> Observation:
    return await together(stage, body_for(CHAT, WORDS, n=2), room(stage, 4242))


async def fake_host(stage: Stage) -> Observation:
    """Prefill alone: cold, again, then warm by a real pair, then after a flush."""
    prompt = token_prompt(1, 320)
    fake = room(stage, 77, bootstrap_host=FAKE_HOST, return_cached_tokens_details=True)

    async def act() -> Observation:
        seen: Observation = {}
        for name in ("cold", "again"):
            seen |= under(name, of_reply(await leg(stage, stage.pair.prefill, COMPLETIONS, token_body(prompt), fake)))
        await stage.pair.ask(COMPLETIONS, token_body(prompt))
        seen |= under("warm", of_reply(await leg(stage, stage.pair.prefill, COMPLETIONS, token_body(prompt), fake)))
        await stage.fresh()
        return seen | under("flushed", of_reply(await leg(stage, stage.pair.prefill, COMPLETIONS, token_body(prompt), fake)))

    return await watched(stage, [prompt], act)


async def dead_prefill(stage: Stage, path: str, stream: bool) -> Observation:
    """The decode leg alone, with a bootstrap server that does not exist."""
    dead = room(stage, 99, bootstrap_port=stage.dead_bootstrap_port)
    body = body_for(path, WORDS, stream=stream) | wanting_usage(path, stream)
    return of_reply(await leg(stage, stage.pair.decode, path, body, dead))


async def duplicate_keys(stage: Stage) -> Observation:
    seen: Observation = {}
    for name, raw in {
        "last_wins": b'{"rid":"first","model":"tiny-agent","prompt":"hi","max_tokens":2,"rid":"second"}',
        "model": b'{"model":"other","prompt":"hi","max_tokens":2,"rid":"m","model":"tiny-agent"}',
    }.items():
        body = raw[:-1] + b',"bootstrap_host":"2.2.2.2","bootstrap_room":5,"bootstrap_port":1}'
        reply = await send(stage.http, stage.pair.prefill.url + COMPLETIONS, body)
        seen |= under(name, {"status": reply.status, "ids": sorted(reply.ids), "model": reply.json.get("model")})
    return seen


async def in_mid_prefill(stage: Stage, asked: asyncio.Task[Observation]) -> None:
    """A first chunk is computed and more are to come."""
    while not asked.done():
        (load,) = await stage.loads(stage.pair.prefill)
        if load.kv_tokens_used > 0 and load.waiting_uncached_tokens:
            return
        await asyncio.sleep(0.02)


async def abort_in_mid_prefill(stage: Stage, path: str, stream: bool) -> Observation:
    rid = stage.pair.rid(path)
    body = body_for(path, LONG_WORDS, tokens=100, stream=stream)
    asked = asyncio.create_task(ask(stage, path, body, rid))
    await in_mid_prefill(stage, asked)
    await stage.pair.abort(rid)
    seen = await asked
    await stage.idle()
    return seen


async def close_in_mid_prefill(stage: Stage) -> Observation:
    """Clients that leave free both servers."""
    asked = asyncio.create_task(ask(stage, CHAT, body_for(CHAT, LONG_WORDS, tokens=100, stream=True)))
    await in_mid_prefill(stage, asked)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await stage.idle()
    return {"freed": True}


async def cache_by_pages(stage: Stage) -> Observation:
    """A prompt, the same again, one that continues it, and one that leaves it in the middle."""
    first = token_prompt(2, 333)
    longer = first + token_prompt(3, 200)
    forked = first[:100] + token_prompt(4, 100)
    prompts = [first, first, longer, forked]

    async def act() -> Observation:
        seen: Observation = {}
        for number, prompt in enumerate(prompts):
            seen |= under(str(number), await ask(stage, COMPLETIONS, token_body(prompt)))
        return seen

    return await watched(stage, [longer, forked], act)


async def flush(stage: Stage) -> Observation:
    prompt = token_prompt(5, 200)

    async def act() -> Observation:
        await stage.pair.ask(COMPLETIONS, token_body(prompt))
        await stage.idle()
        reply = await stage.http.post(f"{stage.pair.prefill.url}/flush_cache?timeout=5")
        return {"status": reply.status_code, "text": reply.text}

    return await watched(stage, [prompt], act)


async def pressure(stage: Stage) -> Observation:
    """More prompts than the device cache holds, then the first again: evicted from L1, restored from L2."""
    prompts = [token_prompt(10 + number, 3_000) for number in range(7)]

    async def act() -> Observation:
        for prompt in prompts:
            await stage.pair.ask(COMPLETIONS, token_body(prompt, tokens=2))
            await stage.idle()
        prefill, _ = await stage.pair.ask(COMPLETIONS, token_body(prompts[0], tokens=2))
        return under("restored", of_reply(prefill))

    return await watched(stage, prompts, act)


async def restart(stage: Stage) -> Observation:
    """A new life numbers its batches from 0 and holds nothing."""
    prompt = token_prompt(6, 320)
    await stage.pair.ask(COMPLETIONS, token_body(prompt))
    await stage.idle()
    await stage.restart_prefill()
    empty = await replayed(stage.prefill_feed)
    seen = under("after", await ask(stage, COMPLETIONS, token_body(prompt)))
    await stage.idle()
    frames = await replayed(stage.prefill_feed)
    return seen | {"batches_at_start": len(empty), "numbers": [frame.seq for frame in frames][:1]}


async def refusals(stage: Stage, path: str) -> Observation:
    """What is wrong with a request is told by status and in the dialect's own error."""
    good = body_for(path, "hi")
    prompt_key = {COMPLETIONS: "prompt", RESPONSES: "input"}.get(path, "messages")
    url = stage.pair.prefill.url + path
    too_long = body_for(path, "x1 " * 9_000)
    cases: Mapping[str, bytes] = {
        "no_json": b'{"model":',
        "no_prompt": splice({key: value for key, value in good.items() if key != prompt_key}, b""),
        "wrong_type": splice(good | {prompt_key: 7}, b""),
        "too_long": splice(too_long | room(stage, 3, bootstrap_host=FAKE_HOST), b""),
    }
    seen: Observation = {}
    for name, body in cases.items():
        seen |= under(name, await bounded(send(stage.http, url, body)))
    plain = await stage.http.post(url, content=splice(good, b""), headers={"content-type": "text/plain"})
    return seen | under("content_type", of_reply(Reply(plain.status_code, plain.headers, plain.content)))


async def control(stage: Stage) -> Observation:
    """The endpoints that a gateway asks, by their shapes; `/server_info` through what discovery makes of it."""
    seen: Observation = {}
    for path in ("/v1/models", "/v1/loads", "/get_load", "/health", "/model_info", "/no_such_path"):
        reply = await stage.http.get(stage.pair.prefill.url + path)
        seen |= under(path, of_reply(Reply(reply.status_code, reply.headers, reply.content)))
    for name, endpoint in (("prefill", stage.pair.prefill), ("decode", stage.pair.decode)):
        info = await SGLANG.discover(stage.http, endpoint)
        fields = ("models", "role", "page_size", "dp_size", "bigram", "kv_tokens_capacity", "max_running_requests")
        more = ("max_prompt_tokens", "decode_keeps_cache", "reports_cached_tokens")
        seen |= under(f"info.{name}", {field: getattr(info, field) for field in fields + more})
        seen |= under(f"info.{name}", {"topic": info.event_feeds[0].topic, "bootstraps": info.bootstrap_port is not None})
    reply = await stage.http.post(f"{stage.pair.prefill.url}/abort_request", json={"rid": "unknown"})
    seen |= under("/abort_request", of_reply(Reply(reply.status_code, reply.headers, reply.content)))
    query = f"http://127.0.0.1:{stage.pair.bootstrap_port}/route"
    route = await stage.http.get(
        query, params=dict.fromkeys(("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"), -1)
    )
    return seen | under("/route", of_reply(Reply(route.status_code, route.headers, route.content)))


def by_path(name: str, probe: Callable[..., Awaitable[Observation]], paths: Sequence[str] = PATHS) -> dict[str, Probe]:
    """One probe a path, streamed and not."""
    return {
        f"{name} {path.removeprefix('/v1/')}{' streamed' if stream else ''}": partial(probe, path=path, stream=stream)
        for path in paths
        for stream in (False, True)
    }


PROBES: dict[str, Probe] = {
    **by_path("dialogue", dialogue),
    "tools": partial(tools, stream=False),
    "tools streamed": partial(tools, stream=True),
    **by_path("missing room", missing_room),
    "room 0": room_zero,
    "n = 2": two_choices,
    "fake host": fake_host,
    "duplicate keys": duplicate_keys,
    **by_path("abort in mid-prefill", abort_in_mid_prefill),
    "close in mid-prefill": close_in_mid_prefill,
    "cache by pages": cache_by_pages,
    "decode had more": decode_had_more,
    "flush": flush,
    "pressure": pressure,
    **{f"refusals {path.removeprefix('/v1/')}": partial(refusals, path=path) for path in PATHS},
    "control": control,
    **by_path("dead prefill", dead_prefill, (CHAT, MESSAGES)),
    "restart": restart,
}
