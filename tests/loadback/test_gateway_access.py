"""Addresses, ports and tokens: what is told when they are wrong."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest
import typer

from loadback.admin_api import AdminError, Workers, admin_headers, decode, fetch
from loadback.doctor.gateway import check_gateway
from loadback.gateway_url import checked_url
from loadback.serve_command import lone_agents, missing_folders
from router.config.load import parse_config

HTML = "<html><title>Router login</title></html>"
KEY_FAULT = msgspec.json.encode(
    {"error": {"message": "no such pool", "type": "invalid_request_error", "code": None, "param": None}}
)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000", "ftp://host", "http://", ""])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(typer.BadParameter, match="http://"):
        checked_url(url)


def test_a_url_loses_what_is_added_to_it() -> None:
    assert checked_url("http://10.0.0.5:8000/v1/") == "http://10.0.0.5:8000"
    assert checked_url(None) is None


async def asked(status: int, content: bytes | str, token: str | None = None) -> AdminError:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=admin_headers(token)) as http:
        with pytest.raises(AdminError) as raised:
            await fetch(http, "/admin/workers", Workers)
    return raised.value


async def test_a_wrong_token_is_not_a_missing_one() -> None:
    assert "the token was refused" in (await asked(401, b"{}", token="wrong")).found
    missing = await asked(401, b"{}")
    assert "token was refused" not in str(missing)
    assert missing.fix == "give the gateway's auth.admin_token as --token"


@pytest.mark.parametrize("token", [None, "useless"])
async def test_where_no_token_is_set_the_gateways_own_host_is_named(token: str | None) -> None:
    words = b'{"error": {"message": "/admin answers loopback only until `auth.admin_token` is set"}}'
    assert (await asked(401, words, token)).fix.startswith("ask from the gateway's own host, or set auth.admin_token there")


async def test_a_time_out_says_how_long_was_waited() -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(late), base_url="http://gateway") as http:
        with pytest.raises(AdminError, match=r"no answer from .*/admin/workers \(timed out after 10 s\)"):
            await fetch(http, "/admin/workers", Workers)
        ready, _ = (await check_gateway(http))[1]
    assert ready.found == "http://gateway does not answer: timed out after 10 s"


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_a_wrong_server_is_quoted(status: int) -> None:
    error = await asked(status, HTML)
    assert "Router login" in error.found
    assert "is it a loadback gateway" in error.fix


async def test_a_gateways_own_words_are_passed_on() -> None:
    assert (await asked(400, KEY_FAULT)).fix == "no such pool"


def test_an_answer_of_another_shape_is_quoted() -> None:
    with pytest.raises(AdminError, match="nonsense"):
        decode(b'{"workers": "nonsense"}', Workers, "http://gateway")


def test_check_warns_of_a_model_folder_that_is_not_here(tmp_path: Path) -> None:
    text = "pools: [{unified: [{url: 'http://h:1'}], prompt: {model_dir: %s}}]"
    assert missing_folders(parse_config(text % tmp_path, "x.yaml", {})) == []
    told = missing_folders(parse_config(text % "/nowhere/model", "x.yaml", {}))
    assert len(told) == 1
    assert "prompt.model_dir" in told[0]
    assert "/nowhere/model" in told[0]


def test_check_warns_of_an_agent_beside_which_no_worker_runs() -> None:
    text = "pools: [{unified: [{url: 'http://h:1'}, {url: 'http://g:1', node: b}]}]\nagents: [%s]"
    assert lone_agents(parse_config(text % "{node: h, host: x, port: 1}, {node: b, host: x, port: 2}", "x.yaml", {})) == []
    told = lone_agents(parse_config(text % "{node: b, host: x, port: 1}, {node: g, host: x, port: 2}", "x.yaml", {}))
    assert told == [
        "warning: agents.1.node: no worker runs on 'g', but on b, h; "
        "give the workers that attach to this agent `node` as it has"
    ]
