"""What a vLLM server tells: discovery, load, and what may be spliced."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from engine_adapters.adapters import adapter_for
from engine_adapters.base import AdapterError, Edit, Endpoint, EngineKind, LoadReport
from engine_adapters.counts import MAX_COUNT

DATA = Path(__file__).parents[2] / "data" / "engines"
METRICS = (DATA / "vllm_metrics.txt").read_text()
ENDPOINT = Endpoint("http://v:8000")
VLLM = adapter_for(EngineKind.VLLM)


def server(replies: dict[str, httpx.Response]) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        return replies.get(request.url.path, httpx.Response(404))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def replies(metrics: httpx.Response) -> dict[str, httpx.Response]:
    return {
        "/version": httpx.Response(200, json={"version": "0.32.0"}),
        "/v1/models": httpx.Response(200, json={"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 8192}]}),
        "/metrics": metrics,
    }


async def test_discovery_reads_the_cache_config_from_metrics() -> None:
    async with server(replies(httpx.Response(200, text=METRICS))) as http:
        info = await VLLM.discover(http, ENDPOINT)
    assert (info.engine, info.models, info.max_prompt_tokens) == ("vllm 0.32.0", ("tiny",), 8192)
    assert (info.page_size, info.dp_size, info.kv_tokens_capacity) == (32, 1, 1_048_576)
    assert info.flags["prefix_caching_hash_algo"] == "sha256"


async def test_closed_metrics_cost_the_block_size_and_the_load_only() -> None:
    async with server(replies(httpx.Response(404))) as http:
        assert (await VLLM.discover(http, ENDPOINT)).page_size == 0
        with pytest.raises(AdapterError, match="/metrics is closed"):
            await VLLM.read_loads(http, ENDPOINT)


async def test_load_counts_tokens_by_the_used_share() -> None:
    config = 'vllm:cache_config_info{block_size="32",engine="1",kv_cache_size_tokens="None",num_gpu_blocks="100"} 1.0'
    gauges = ['vllm:num_requests_running{engine="1"} 2.0', 'vllm:num_requests_waiting{engine="1"} 3.0']
    text = "\n".join([config, *gauges, 'vllm:kv_cache_usage_perc{engine="1"} 0.25'])
    async with server({"/metrics": httpx.Response(200, text=text)}) as http:
        assert list(await VLLM.read_loads(http, ENDPOINT)) == [LoadReport(1, 2, 3, kv_tokens_used=800, kv_tokens_capacity=3200)]


def test_only_streams_of_the_completion_paths_are_edited() -> None:
    chat = "/v1/chat/completions"
    assert VLLM.members(Edit(chat, stream=True, rid="r")) == b'"stream_options":{"include_usage":true}'
    assert VLLM.members(Edit(chat, stream=False, rid="r")) == b""
    assert VLLM.members(Edit("/v1/messages", stream=True, rid="r")) == b""


async def test_an_abort_sends_nothing() -> None:
    async with server({}) as http:
        await VLLM.abort(http, ENDPOINT, "r")


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e308", "-5"])
@pytest.mark.parametrize("size", ["32", "-1", "\u00b2", "9" * 400])
async def test_absurd_numbers_are_bounded(number: str, size: str) -> None:
    config = f'vllm:cache_config_info{{block_size="{size}",engine="0",num_gpu_blocks="{size}"}} 1.0'
    gauges = [f'vllm:{name}{{engine="0"}} {number}' for name in ("num_requests_running", "num_requests_waiting")]
    text = "\n".join([config, *gauges, f'vllm:kv_cache_usage_perc{{engine="0"}} {number}'])
    running = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1000000"} 1.0\n'
    stray = 'vllm:num_requests_running{engine="-9"} 1.0\nvllm:num_requests_running{engine="x"} 1.0\n'
    async with server(replies(httpx.Response(200, text=running + stray + text))) as http:
        (report,) = await VLLM.read_loads(http, ENDPOINT)
        info = await VLLM.discover(http, ENDPOINT)
    assert report.dp_rank == 0
    told = (report.running_requests, report.waiting_requests, report.kv_tokens_used, report.kv_tokens_capacity, info.page_size)
    assert all(0 <= value <= MAX_COUNT for value in told)
