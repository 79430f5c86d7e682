"""SGLang's control calls: newest endpoint first, older ones after a 404, errors that name the URL."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from engine_adapters.adapters import adapter_for, detect
from engine_adapters.base import AdapterError, Endpoint, EngineKind
from engine_adapters.sglang.adapter import SglangAdapter

DATA = Path(__file__).parents[2] / "data" / "engines"
INFO = (DATA / "sglang_server_info.json").read_bytes()
MODELS = (DATA / "sglang_v1_models.json").read_bytes()
LOADS = (DATA / "sglang_v1_loads.json").read_bytes()
ENDPOINT = Endpoint("http://s:30000", api_key="sk-user", admin_key="sk-admin")
SGLANG = adapter_for(EngineKind.SGLANG)


class Server:
    """Answers what it was given, 404 for the rest, and remembers the requests."""

    def __init__(self, **replies: bytes | int | Exception) -> None:
        self.replies = {"/" + name.replace("__", "/"): reply for name, reply in replies.items()}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply = self.replies.get(request.url.path, 404)
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply) if isinstance(reply, int) else httpx.Response(200, content=reply)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self))

    @property
    def asked(self) -> list[str]:
        return [request.url.path for request in self.requests]


async def test_discovery_of_a_current_and_of_an_older_server() -> None:
    for server in (Server(server_info=INFO, v1__models=MODELS), Server(get_server_info=INFO, v1__models=MODELS)):
        async with server.client() as http:
            assert (await SGLANG.discover(http, ENDPOINT)).engine == "sglang 0.5.23"


async def test_discovery_of_something_else_says_so() -> None:
    async with Server(v1__models=MODELS).client() as http:
        with pytest.raises(AdapterError, match="http://s:30000 serves none of /server_info"):
            await SGLANG.discover(http, ENDPOINT)


async def test_load_is_asked_of_the_newest_endpoint_that_exists() -> None:
    old = b'[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0,"num_tokens":5}]'
    for server, path in (
        (Server(v1__loads=LOADS, get_load=old), "/v1/loads"),
        (Server(get_load=old), "/get_load"),
        (Server(metrics=b"sglang:num_running_reqs{} 1.0\n"), "/metrics"),
    ):
        async with server.client() as http:
            assert len(await SGLANG.read_loads(http, ENDPOINT)) == 1
        assert server.asked[-1] == path


async def test_no_load_anywhere_names_the_fix() -> None:
    async with Server().client() as http:
        with pytest.raises(AdapterError, match="--enable-metrics"):
            await SGLANG.read_loads(http, ENDPOINT)


async def test_a_fault_is_not_taken_for_an_older_server() -> None:
    server = Server(v1__loads=500, get_load=b"[]")
    async with server.client() as http:
        with pytest.raises(AdapterError, match="answered 500"):
            await SGLANG.read_loads(http, ENDPOINT)
    assert server.asked == ["/v1/loads"]


async def test_abort_goes_by_id_with_the_admin_key() -> None:
    server = Server(abort_request=b"")
    async with server.client() as http:
        await SGLANG.abort(http, ENDPOINT, "r1")
        with pytest.raises(AdapterError, match="needs a request id"):
            await SGLANG.abort(http, ENDPOINT, "")
    (request,) = server.requests
    assert json.loads(request.content) == {"rid": "r1"}
    assert request.headers["authorization"] == "Bearer sk-admin"


async def test_a_flush_waits_for_the_engine_to_be_idle() -> None:
    server = Server(flush_cache=b"")
    async with server.client() as http:
        await SglangAdapter().flush_cache(http, ENDPOINT, timeout_s=2.5)
    assert server.requests[0].url.query == b"timeout=2.5"


async def test_health_is_an_answer_about_models() -> None:
    async with Server(v1__models=MODELS).client() as http:
        assert await SGLANG.healthy(http, ENDPOINT)
    async with Server(v1__models=httpx.ConnectError("refused")).client() as http:
        assert not await SGLANG.healthy(http, ENDPOINT)


async def test_a_dead_server_is_an_adapter_error_with_the_url() -> None:
    async with Server(server_info=httpx.ReadTimeout("slow")).client() as http:
        with pytest.raises(AdapterError, match="GET http://s:30000/server_info failed: ReadTimeout"):
            await SGLANG.discover(http, ENDPOINT)


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (Server(v1__models=MODELS), EngineKind.SGLANG),
        (Server(v1__models=b'{"data":[{"id":"m","owned_by":"vllm"}]}'), EngineKind.VLLM),
        (Server(v1__models=b'{"data":[{"id":"m"}]}', server_info=INFO), EngineKind.SGLANG),
        (Server(v1__models=b'{"data":[{"id":"m"}]}', server_info=b"{}"), EngineKind.OPENAI),
        (Server(v1__models=b'{"data":[]}', server_info=httpx.ReadTimeout("slow")), EngineKind.OPENAI),
    ],
)
async def test_the_kind_of_an_unnamed_server(server: Server, kind: EngineKind) -> None:
    async with server.client() as http:
        assert await detect(http, ENDPOINT) is kind


async def test_nothing_there_cannot_be_detected() -> None:
    async with Server().client() as http:
        with pytest.raises(AdapterError, match="/v1/models answered 404"):
            await detect(http, ENDPOINT)
