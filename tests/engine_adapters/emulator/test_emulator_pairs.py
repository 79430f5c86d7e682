"""Disaggregated pairs end as SGLang's do, whatever goes wrong with one half."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from emulator_pool import FAST, Emulated, Pair, pair
from loop_server import listening

from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.wire.bootstrap import BootstrapApp
from engine_adapters.launch.ports import free_ports

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "some words " * 40}], "max_tokens": 8}
SLOW = msgspec.structs.replace(FAST, speed=0.06)  # a prefill takes long enough to be disturbed, on a busy machine, too


async def reached(emulated: Emulated, rid: str, stage: Stage) -> None:
    for _ in range(5_000):
        if emulated.worker.driver.model.stage(rid) is stage:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{rid} never came to {stage}")


def message(reply: Any) -> str:
    return str(reply.json()["message"])


async def test_both_halves_answer_and_the_decode_half_knows_what_prefill_had_cached() -> None:
    async with pair() as pool:
        for cached in (0, 80):
            prefill, decode = await pool.both(CHAT, {**BODY, "return_cached_tokens_details": True})
            assert (prefill.status_code, decode.status_code) == (200, 200)
            assert prefill.json()["choices"][0]["finish_reason"] == "length"
            assert prefill.json()["usage"]["completion_tokens"] == 1
            assert decode.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
            assert ("sglext" in decode.json()) == bool(cached)
        assert len(pool.prefill.worker.rooms) == 0


async def test_the_first_half_waits_for_the_second() -> None:
    async with pair() as pool:
        sent = pool.paired({**BODY, "rid": "early"})
        waiting = asyncio.create_task(pool.prefill.post(CHAT, sent))
        await reached(pool.prefill, "early", Stage.BOOTSTRAP)
        decode = await pool.decode.post(CHAT, sent)
        assert (decode.status_code, (await waiting).status_code) == (200, 200)


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_missing_room_is_refused(leg: str) -> None:
    async with pair() as pool:
        emulated: Emulated = getattr(pool, leg)
        whole = await emulated.post(CHAT, BODY)
        assert (whole.status_code, whole.json()["type"]) == (400, "BadRequestError")
        assert "without bootstrap room id" in message(whole)
        streamed = await emulated.post(CHAT, {**BODY, "stream": True})
        assert streamed.status_code == 200
        first, done = streamed.text.strip().split("\n\n")
        assert json.loads(first.removeprefix("data: "))["error"]["code"] == 400
        assert done == "data: [DONE]"


async def test_room_zero_never_reaches_decode() -> None:
    async with pair() as pool:
        sent = pool.paired({**BODY, "rid": "zero"}, room=0)
        decode = asyncio.create_task(pool.decode.post(CHAT, sent))
        assert (await pool.prefill.post(CHAT, sent)).status_code == 200
        await asyncio.sleep(0)
        assert pool.decode.worker.driver.model.stage("zero") is Stage.RECEIVING
        pool.decode.worker.abort("zero")
        assert (await decode).status_code == 500


async def test_two_samples_never_reach_decode() -> None:
    async with pair() as pool:
        sent = pool.paired({**BODY, "n": 2, "rid": "two"})
        decode = asyncio.create_task(pool.decode.post(CHAT, sent))
        prefill = await pool.prefill.post(CHAT, sent)
        assert [choice["index"] for choice in prefill.json()["choices"]] == [0, 1]
        assert not decode.done()
        pool.decode.worker.abort("two")
        assert (await decode).status_code == 500


async def test_a_batch_with_rooms_of_its_own_works() -> None:
    async with pair() as pool:
        port = pool.prefill.bootstrap_port
        body = {
            "model": "tiny",
            "prompt": ["one text", "another text"],
            "max_tokens": 3,
            "bootstrap_host": ["127.0.0.1"] * 2,
            "bootstrap_port": [port] * 2,
            "bootstrap_room": [71, 72],
        }
        replies = await asyncio.gather(*(leg.post("/v1/completions", body) for leg in (pool.prefill, pool.decode)))
        assert [len(reply.json()["choices"]) for reply in replies] == [2, 2]


async def test_the_fake_host_needs_no_partner_and_leaves_nothing_behind() -> None:
    async with pair() as pool:
        fake = {**BODY, "bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 9}
        for _ in range(2):
            reply = await pool.prefill.post(CHAT, fake)
            assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await pool.both(CHAT, BODY)
        reply = await pool.prefill.post(CHAT, fake)
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 80


@pytest.mark.parametrize(("path", "status"), [(CHAT, 500), ("/v1/messages", 500), ("/v1/responses", 400)])
async def test_an_absent_prefill_worker_fails_in_each_dialect(path: str, status: int) -> None:
    body = {**BODY, "input": "some words"} if path == "/v1/responses" else BODY
    async with pair() as pool:
        sent = {**pool.paired(body), "bootstrap_port": free_ports(1)[0]}
        whole = await pool.decode.post(path, sent)
        assert whole.status_code == status
        streamed = await pool.decode.post(path, {**sent, "stream": True})
        assert streamed.status_code == 200
        assert "Decode handshake failed" in streamed.text


async def test_a_prefill_worker_that_dies_is_noticed() -> None:
    async with pair(SLOW) as pool, listening(BootstrapApp(pool.prefill.worker)) as mortal:
        sent = {**pool.paired({**BODY, "rid": "orphan"}), "bootstrap_port": mortal}
        decode = asyncio.create_task(pool.decode.post(CHAT, sent))
        prefill = asyncio.create_task(pool.prefill.post(CHAT, sent))
        await reached(pool.prefill, "orphan", Stage.PREFILLING)
        prefill.cancel()
    reply = await decode
    assert reply.status_code == 500
    assert f"Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:{mortal})" in message(reply)


async def test_aborting_decode_fails_the_prefill_half_once_it_has_computed() -> None:
    async with pair(SLOW) as pool:
        both = asyncio.create_task(pool.both(CHAT, {**BODY, "rid": "cut"}))
        await reached(pool.prefill, "cut", Stage.PREFILLING)
        await pool.decode.post("/abort_request", {"rid": "cut"})
        prefill, decode = await both
        assert (prefill.status_code, decode.status_code) == (500, 500)
        assert message(decode).endswith("Aborted by AbortReq.")
        assert message(prefill).endswith("Failed due to an unknown reason from another rank")
        assert len(pool.prefill.worker.rooms) == 0


async def test_aborting_a_waiting_prefill_half_tells_its_client_but_not_decode() -> None:
    async with pair() as pool:
        sent = pool.paired({**BODY, "rid": "alone"})
        prefill = asyncio.create_task(pool.prefill.post(CHAT, sent))
        await reached(pool.prefill, "alone", Stage.BOOTSTRAP)
        await pool.prefill.post("/abort_request", {"rid": "alone"})
        reply = await prefill
        assert (reply.status_code, message(reply).startswith("Prefill bootstrap failed")) == (500, True)
        decode = asyncio.create_task(pool.decode.post(CHAT, sent))
        await reached(pool.decode, "alone", Stage.RECEIVING)
        assert not decode.done()
        await pool.decode.post("/abort_request", {"rid": "alone"})
        assert (await decode).status_code == 500


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_half_whose_partner_never_comes_gives_up(leg: str) -> None:
    async with pair(pair_timeout_ms=30.0) as pool:
        reply = await getattr(pool, leg).post(CHAT, pool.paired(BODY))
        assert reply.status_code == 500
        assert "timed out after 0.0s" in message(reply)


async def test_a_rid_is_used_once_at_a_time_and_its_owner_is_not_harmed() -> None:
    async with pair() as pool:
        sent = pool.paired({**BODY, "rid": "same"})
        owner = asyncio.create_task(pool.prefill.post(CHAT, sent))
        await reached(pool.prefill, "same", Stage.BOOTSTRAP)
        second = await pool.prefill.post(CHAT, sent)
        assert (second.status_code, message(second)) == (400, "Duplicate request ID detected: same")
        assert (await pool.decode.post(CHAT, {**sent, "rid": "same"})).status_code == 200
        assert (await owner).status_code == 200


async def test_the_bootstrap_server_describes_the_prefill_worker() -> None:
    async with pair() as pool:
        found = await _route(pool, "-1")
        assert (found["page_size"], found["dp_size"], found["follow_bootstrap_room"]) == (16, 1, True)
        assert (await _route(pool, "0"))["rank_port"] == pool.prefill.worker.options.bootstrap_port


async def _route(pool: Pair, rank: str) -> dict[str, Any]:
    keys = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.prefill.bootstrap_port)
    query = "&".join(f"{key}={rank}" for key in keys)
    writer.write(f"GET /route?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    found: dict[str, Any] = json.loads(reply.partition(b"\r\n\r\n")[2])
    return found
