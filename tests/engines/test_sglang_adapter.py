"""Everything the SGLang adapter claims, on a real 2P1D pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random

import httpx
import msgspec
import pytest
from pd_pair import CHAT, COMPLETIONS, MESSAGES, MODEL, PATHS, RESPONSES, SGLANG, Pair, Reply, body_for, send, splice

from costmodel.values import Role, Tier, WorkerKey
from engine_adapters.adapters import detect
from engine_adapters.base import Endpoint, EngineKind, ReplyFacts
from engine_adapters.launch.pool import Pool, Server
from engine_adapters.sglang.contract import Need, Verdict, examine
from engine_adapters.sglang.subscriber import Subscriber
from kvtier.hashing.sglang import event_ids
from kvtier.index.memory import BlockIndex

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAGE = 16
DEADLINE_S = 60.0
SECONDS_LONG = 6_000  # words: a prompt of 12,000 tokens, whose prefill takes seconds here


@pytest.fixture
def words() -> Iterator[str]:
    """A word that no other test's prompt begins with, so that nothing is cached by accident."""
    return (f"w{number} " for number in range(time.monotonic_ns(), time.monotonic_ns() + 10**9))


@pytest.fixture
def pair(pd_pool: Pool, http: httpx.AsyncClient) -> Pair:
    return pair_of(pd_pool.prefills[0], pd_pool.decodes[0], http)


def pair_of(prefill: Server, decode: Server, http: httpx.AsyncClient) -> Pair:
    return Pair(http, prefill.url, prefill.spec.bootstrap_port, decode.url, Random())


async def until(holds: Callable[[], Awaitable[bool]], deadline_s: float = DEADLINE_S) -> None:
    async with asyncio.timeout(deadline_s):
        while not await holds():  # noqa: ASYNC110 - an engine tells nobody
            await asyncio.sleep(0.05)


def facts(reply: Reply) -> ReplyFacts:
    return SGLANG.facts(msgspec.json.encode(reply.usage), reply.details)


async def tokens_of(http: httpx.AsyncClient, url: str, text: str) -> list[int]:
    reply = await http.post(f"{url}/v1/tokenize", json={"model": MODEL, "prompt": text})
    tokens: list[int] = reply.json()["tokens"]
    return tokens


@asynccontextmanager
async def following(server: Server, http: httpx.AsyncClient, index: BlockIndex) -> AsyncIterator[Subscriber]:
    info = await SGLANG.discover(http, Endpoint(server.url))
    (feed,) = info.event_feeds
    key = WorkerKey(server.url)
    subscriber = Subscriber(feed, key, index, SGLANG.decode_events, lambda: time.monotonic() * 1000)
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def held(index: BlockIndex, server: Server, blocks: tuple[int, ...]) -> int:
    match = index.match(blocks, 0.0).get(WorkerKey(server.url))
    return match.blocks if match else 0


async def test_discovery_tells_roles_pages_feeds_and_ports(pd_pool: Pool, http: httpx.AsyncClient) -> None:
    for server in pd_pool.servers:
        info = await SGLANG.discover(http, Endpoint(server.url))
        spec = server.spec
        assert (info.role, info.models, info.page_size, info.dp_size) == (spec.role, (MODEL,), PAGE, 1)
        assert info.event_feeds[0].address == f"tcp://127.0.0.1:{spec.kv_port}"
        assert info.event_feeds[0].replay_address == f"tcp://127.0.0.1:{spec.replay_port}"
        assert info.bootstrap_port == (spec.bootstrap_port if spec.role is Role.PREFILL else None)
        assert info.decode_keeps_cache is (spec.role is Role.DECODE)
        assert info.reports_cached_tokens
        assert await detect(http, Endpoint(server.url)) is EngineKind.SGLANG
        assert await SGLANG.healthy(http, Endpoint(server.url))
        lacking = [f.clause.flag for f in examine(info) if f.verdict is Verdict.MISSING and f.clause.need is not Need.OPTIONAL]
        assert lacking == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_every_path_takes_the_members_and_reports_usage(
    pair: Pair, words: Iterator[str], path: str, stream: bool
) -> None:
    prompt = next(words) * 100
    rid = pair.rid(path)
    for attempt in range(2):
        prefill, decode = await pair.ask(path, body_for(path, prompt, stream=stream), rid=f"{rid}{attempt}")
        assert (prefill.status, decode.status) == (200, 200), decode.text
        if path != MESSAGES:
            assert decode.ids == {f"{rid}{attempt}"}
    told = facts(prefill)
    assert told.prompt_tokens > 200
    assert told.cached_tokens == (told.prompt_tokens - 1) // PAGE * PAGE
    if path in (CHAT, COMPLETIONS):
        assert told.cached_by_tier == {Tier.L1: told.cached_tokens}
    assert facts(decode).prompt_tokens == told.prompt_tokens
    assert facts(decode).completion_tokens >= 1


async def test_of_equal_keys_the_spliced_one_wins(pair: Pair, words: Iterator[str]) -> None:
    body = {"rid": "client", "bootstrap_room": 0, "bootstrap_host": "2.2.2.2", **body_for(CHAT, next(words))}
    rid = pair.rid(CHAT)
    _, decode = await pair.ask(CHAT, body, rid)
    assert decode.ids == {rid}


async def test_headers_outrank_the_body_and_are_therefore_reserved(pair: Pair, words: Iterator[str]) -> None:
    body = splice(body_for(CHAT, next(words)), b'"rid":"spliced","bootstrap_host":"2.2.2.2","bootstrap_room":5')
    reply = await send(pair.http, pair.prefill.url + CHAT, body, ((b"x-override-rid", b"header"),))
    assert reply.ids == {"header"}
    assert b"x-override-rid" in SGLANG.reserved_headers


async def test_the_decode_reply_overstates_what_prefill_had(
    pd_pool: Pool, http: httpx.AsyncClient, words: Iterator[str]
) -> None:
    """Known of the engine and relied on: only the prefill leg's own reply corrects prefill residency."""
    first, second = (pair_of(prefill, pd_pool.decodes[0], http) for prefill in pd_pool.prefills)
    body = body_for(CHAT, next(words) * 100)
    await first.ask(CHAT, body)
    prefill, decode = await second.ask(CHAT, body)
    assert facts(prefill).cached_tokens == 0
    assert (facts(decode).cached_tokens or 0) > 0


async def test_load_counts_the_tokens_that_were_computed(pair: Pair, words: Iterator[str]) -> None:
    (before,) = await SGLANG.read_loads(pair.http, pair.prefill)
    prefill, _ = await pair.ask(CHAT, body_for(CHAT, next(words) * 200))
    told = facts(prefill)
    uncached = told.prompt_tokens - (told.cached_tokens or 0)

    async def counted() -> bool:
        (after,) = await SGLANG.read_loads(pair.http, pair.prefill)
        return (after.prefill_uncached_tokens_total or 0) - (before.prefill_uncached_tokens_total or 0) == uncached

    await until(counted)
    (after,) = await SGLANG.read_loads(pair.http, pair.prefill)
    assert (after.prefill_busy_us_total or 0) > (before.prefill_busy_us_total or 0)
    assert after.transfer_bytes_per_ms is not None


async def test_events_are_followed_live_with_the_projects_own_hashes(
    pd_pool: Pool, pair: Pair, http: httpx.AsyncClient, words: Iterator[str]
) -> None:
    index = BlockIndex()
    prefill, decode = pd_pool.prefills[0], pd_pool.decodes[0]
    prompt = next(words) * 100
    blocks = event_ids(await tokens_of(http, prefill.url, prompt), PAGE)
    assert len(blocks) > 10
    async with following(prefill, http, index) as subscriber, following(decode, http, index):
        await pair.ask(COMPLETIONS, body_for(COMPLETIONS, prompt, tokens=3))

        async def both_hold() -> bool:
            return held(index, prefill, blocks) == held(index, decode, blocks) == len(blocks)

        await until(both_hold)
        assert subscriber.status.unreadable == 0
        await SGLANG.flush_cache(http, pair.prefill, timeout_s=30.0)

        async def prefill_is_empty() -> bool:
            return held(index, prefill, blocks) == 0

        await until(prefill_is_empty)
        assert held(index, decode, blocks) == len(blocks)


async def test_a_late_joiner_learns_what_is_cached(
    pd_pool: Pool, pair: Pair, http: httpx.AsyncClient, words: Iterator[str]
) -> None:
    prompt = next(words) * 100
    await pair.ask(COMPLETIONS, body_for(COMPLETIONS, prompt))
    blocks = event_ids(await tokens_of(http, pair.prefill.url, prompt), PAGE)
    index = BlockIndex()
    async with following(pd_pool.prefills[0], http, index) as subscriber:

        async def holds() -> bool:
            return held(index, pd_pool.prefills[0], blocks) == len(blocks)

        await until(holds)
        assert not subscriber.status.partial


@pytest.mark.parametrize("path", PATHS)
async def test_an_abort_in_mid_prefill_frees_both_legs(pair: Pair, words: Iterator[str], path: str) -> None:
    body = body_for(path, next(words) + "x1 " * SECONDS_LONG, tokens=2000, stream=True)
    rid = pair.rid(path)
    asked = asyncio.create_task(pair.ask(path, body, rid))
    await until(pair.busy)
    assert not asked.done()
    await pair.abort(rid)
    prefill, decode = await asked
    assert "abort" in decode.text.lower()
    assert facts(decode).completion_tokens == 0
    assert facts(prefill).completion_tokens == 0
    if path == MESSAGES:  # known of the engine: prefill's aborted message looks like a finished, empty one
        assert '"stop_reason":"end_turn"' in prefill.text
    else:
        assert "abort" in prefill.text.lower()
    await until(lambda: idle(pair))


async def idle(pair: Pair) -> bool:
    return not await pair.busy()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_connections_that_close_free_both_legs(pair: Pair, words: Iterator[str], path: str) -> None:
    body = body_for(path, next(words) + "x1 " * SECONDS_LONG, tokens=2000, stream=True)
    asked = asyncio.create_task(pair.ask(path, body))
    await until(pair.busy)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: idle(pair))


async def test_a_killed_prefill_worker_fails_the_pair_and_comes_back_empty(
    pd_pool: Pool, http: httpx.AsyncClient, words: Iterator[str]
) -> None:
    victim = pd_pool.prefills[1]
    pair = pair_of(victim, pd_pool.decodes[0], http)
    prompt = next(words) * 100
    blocks = event_ids(await tokens_of(http, victim.url, prompt), PAGE)
    index = BlockIndex()
    async with following(victim, http, index) as subscriber:
        await pair.ask(COMPLETIONS, body_for(COMPLETIONS, prompt))

        async def known() -> bool:
            return held(index, victim, blocks) == len(blocks)

        await until(known)
        asked = asyncio.create_task(pair.ask(CHAT, body_for(CHAT, "y1 " * SECONDS_LONG)))
        await until(pair.busy)
        await victim.process.kill()
        with pytest.raises(httpx.HTTPError):
            await asked
        assert held(index, victim, blocks) == 0 or subscriber.status.connected
        await victim.restart()

        async def believed_again() -> bool:
            return subscriber.status.state == "live"

        await until(believed_again)
        assert held(index, victim, blocks) == 0
        await pair.ask(COMPLETIONS, body_for(COMPLETIONS, prompt))
        await until(known)
