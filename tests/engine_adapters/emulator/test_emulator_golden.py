"""The emulator's replies have the shape of SGLang 0.5.23's, case by case, as captured."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from emulator_pool import Pair, pair
from wire_shape import shape, stream_shape

CASES = json.loads((Path(__file__).parents[2] / "data" / "sglang_wire" / "replies.json").read_text(encoding="utf-8"))

# What the emulator does not imitate, by case: members that hold timings, or what depends on the model's own words.
TIMINGS = {
    "forward_entry_time",
    "queue_time",
    "prefill_finished_time",
    "storage_prefetch_wait",
    "storage_staging_wait",
    "request_received_ts",
    "first_token_latency",
    "api_server_dispatch_finish_ts",
    "request_finished_ts",
    "response_sent_to_client_ts",
    "decode_throughput",
    "e2e_latency",
}
WORDS = {"finish_reason", "matched_stop", "incomplete_details", "stop_reason"}


WARM = ('"cached_tokens_details":{"device":', '"cache_read_input_tokens"')  # captured from a cache that knew the prompt


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[Pair]:
    async with pair() as started:
        yield started


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=[f"{case['case']}-{case['leg']}" for case in CASES])
async def test_reply_has_the_engines_shape(case: dict[str, Any], pool: Pair) -> None:
    for leg in (pool.prefill, pool.decode):
        assert await leg.worker.flush(5.0)
    reply = await _ask(case, pool)
    if any(mark in case["reply"] for mark in WARM):
        reply = await _ask(case, pool)
    assert reply.status_code == case["status"]
    assert reply.headers["content-type"] == case["content_type"]
    assert reply.headers["x-loadback-emulator"] == "1"
    if case["content_type"].startswith("text/event-stream"):
        assert _plain(stream_shape(reply.text)) == _plain(stream_shape(case["reply"]))
    else:
        assert _plain(shape(reply.json())) == _plain(shape(json.loads(case["reply"])))


async def _ask(case: dict[str, Any], pool: Pair) -> httpx.Response:
    if case["paired"]:
        replies = await pool.both(case["path"], case["body"])
        return replies[0] if case["leg"] == "prefill" else replies[1]
    leg = pool.prefill if case["leg"] == "prefill" else pool.decode
    if case["method"] == "GET":
        return await leg.http.get(case["path"])
    return await leg.post(case["path"], case["body"])


def _plain(found: Any) -> Any:
    """Without timings, without what depends on the words; a stream of several pieces equals one of a single piece."""
    if isinstance(found, list) and found and all(isinstance(one, tuple) and len(one) == 2 for one in found):
        return [(key, "words" if key in WORDS else _plain(value)) for key, value in found if key not in TIMINGS]
    if isinstance(found, tuple):
        return tuple(_plain(one) for one in found)
    if isinstance(found, list):
        plain = [_plain(one) for one in found]
        return [one for index, one in enumerate(plain) if index == 0 or one != plain[index - 1]]
    return found
