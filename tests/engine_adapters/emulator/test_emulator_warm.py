"""A warm request brings stored KV to the device and leaves nothing else behind, as on the real engine."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from emulator_pool import FAST, Emulated, Pair, pair, rooms, unified

from costmodel.values import Role, Tier
from engine_adapters.base import AdapterError, Endpoint
from engine_adapters.sglang.warm import Warmed, WarmOrder, abort_warm, read_warmed, send_warm, warm_body

SMALL = msgspec.structs.replace(FAST, kv_tokens=1_024, host_kv_tokens=65_536, context_tokens=1_000)
HERE = Endpoint("http://emulated")
IDS = [10 + number % 900 for number in range(600)]


def body(ids: list[int]) -> dict[str, object]:
    return {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}


def order(tokens: int, role: Role, ids: list[int] = IDS) -> WarmOrder:
    number = next(rooms)
    return WarmOrder(f"warm-{number:08d}", ids, tokens, role, number if role is Role.PREFILL else None)


async def displaced(worker: Emulated, other: list[int], pool: Pair | None = None) -> None:
    """Serve IDS, then something that pushes it out of the device."""
    for ids in (IDS, other):
        if pool is None:
            assert (await worker.post("/generate", body(ids))).status_code == 200
        else:
            assert {reply.status_code for reply in await pool.both("/generate", body(ids))} == {200}


async def cached(worker: Emulated, pool: Pair | None = None) -> dict[str, int]:
    if pool is None:
        reply = await worker.post("/generate", body(IDS))
    else:
        reply, _ = await pool.both("/generate", body(IDS))
    return dict(reply.json()["meta_info"]["cached_tokens_details"] or {})


async def test_it_restores_a_unified_worker_s_host_tier() -> None:
    other = [7 + number % 800 for number in range(800)]
    async with unified(SMALL) as worker:
        await displaced(worker, other)
        warmed = await send_warm(worker.http, HERE, order(592, Role.UNIFIED), 10.0)
        assert warmed.by_tier.get(Tier.L2, 0) > 0
        assert warmed.moved_tokens == warmed.by_tier[Tier.L2]
        assert (await cached(worker))["host"] == 0


async def test_it_restores_a_prefill_worker_without_a_decode_leg() -> None:
    other = [7 + number % 800 for number in range(800)]
    async with pair(SMALL) as pool:
        await displaced(pool.prefill, other, pool)
        warmed = await send_warm(pool.prefill.http, HERE, order(592, Role.PREFILL), 10.0)
        assert warmed.moved_tokens > 0
        assert (await cached(pool.prefill, pool))["host"] == 0


async def test_on_a_prefill_worker_it_keeps_nothing_that_it_computed() -> None:
    async with pair(SMALL) as pool:
        warmed = await send_warm(pool.prefill.http, HERE, order(592, Role.PREFILL), 10.0)
        assert warmed.moved_tokens == 0
        assert await cached(pool.prefill, pool) == {}


async def test_it_can_be_taken_back() -> None:
    slow = msgspec.structs.replace(FAST, speed=0.01)
    async with unified(slow) as worker:
        one = order(592, Role.UNIFIED)
        running = asyncio.create_task(send_warm(worker.http, HERE, one, 10.0))
        while one.rid not in worker.worker.driver.model:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        await abort_warm(worker.http, HERE, one.rid)
        await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 5.0)
        assert one.rid not in worker.worker.driver.model


async def test_a_refusal_is_told() -> None:
    async with unified(SMALL) as worker:
        with pytest.raises(AdapterError, match="answered 400"):
            await send_warm(worker.http, HERE, order(5_000, Role.UNIFIED, IDS * 10), 10.0)


def test_the_body_ends_one_token_behind_what_is_restored() -> None:
    sent = msgspec.json.decode(warm_body(WarmOrder("r", IDS, 32, Role.PREFILL, room=7, dp_rank=1, cache_salt="s")))
    assert sent["input_ids"] == IDS[:33]
    assert (sent["bootstrap_host"], sent["bootstrap_room"], sent["routed_dp_rank"]) == ("2.2.2.2", 7, 1)
    assert (sent["rid"], sent["cache_salt"], sent["stream"]) == ("r", "s", False)
    assert "priority" not in sent
    assert sent["sampling_params"]["max_new_tokens"] == 1


@pytest.mark.parametrize(("role", "room"), [(Role.DECODE, 1), (Role.PREFILL, None), (Role.PREFILL, 0)])
def test_what_cannot_be_warmed_is_refused(role: Role, room: int | None) -> None:
    with pytest.raises(ValueError, match=r"decode worker|needs a room"):
        warm_body(WarmOrder("r", IDS, 32, role, room))


def test_replies_are_read_by_tier() -> None:
    raw = (
        b'{"meta_info":{"prompt_tokens":9,"cached_tokens":8,"cached_tokens_details":{"device":1,"host":2,"storage":5,"x":"y"}}}'
    )
    assert read_warmed(raw, "here") == Warmed(9, {Tier.L1: 1, Tier.L2: 2, Tier.L3: 5})
    assert read_warmed(b'{"meta_info":{"cached_tokens":8}}', "here").moved_tokens == 0
    with pytest.raises(AdapterError):
        read_warmed(b"[]", "here")
