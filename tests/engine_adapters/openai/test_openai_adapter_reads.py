"""A plain OpenAI server: the least that can be known and edited."""

from __future__ import annotations

import httpx
import pytest

from engine_adapters.adapters import adapter_for
from engine_adapters.base import AdapterError, Edit, Endpoint, EngineKind

ENDPOINT = Endpoint("http://o:1", api_key="sk-o")
OPENAI = adapter_for(EngineKind.OPENAI)


def server(status: int) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer sk-o"
        return httpx.Response(status, json={"object": "list", "data": [{"id": "m", "owned_by": "acme"}]})

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


async def test_discovery_knows_the_models() -> None:
    async with server(200) as http:
        info = await OPENAI.discover(http, ENDPOINT)
        assert await OPENAI.healthy(http, ENDPOINT)
        assert list(await OPENAI.read_loads(http, ENDPOINT)) == []
    assert (info.engine, info.models, info.event_feeds) == ("openai (acme)", ("m",), ())


async def test_a_refusal_is_told_with_its_status() -> None:
    async with server(401) as http:
        assert not await OPENAI.healthy(http, ENDPOINT)
        with pytest.raises(AdapterError, match="http://o:1/v1/models answered 401"):
            await OPENAI.discover(http, ENDPOINT)


def test_it_publishes_no_events() -> None:
    with pytest.raises(AdapterError, match="no KV events"):
        OPENAI.decode_events(b"")


def test_only_usage_is_asked_for() -> None:
    edit = Edit("/v1/completions", stream=True, rid="r", bootstrap_host="h", bootstrap_port=1, bootstrap_room=2)
    assert OPENAI.members(edit) == b'"stream_options":{"include_usage":true}'
