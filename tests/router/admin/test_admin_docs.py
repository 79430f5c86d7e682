"""The admin API's description, as a page."""

from __future__ import annotations

import random

import httpx

from router.app import build_app, build_routes
from router.config.load import parse_config
from router.gateway import Gateway


async def test_the_page_is_not_blank_without_the_internet() -> None:
    text = "pools: [{unified: [{url: 'http://127.0.0.1:1'}]}]"
    gateway = Gateway(parse_config(text, "test", {}), lambda: 1000.0, random.Random(1))
    transport = httpx.ASGITransport(build_app(gateway, build_routes(gateway)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        page = await client.get("/admin/docs")
        described = (await client.get("/admin/openapi.json")).json()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    (shown,) = [part for part in page.text.split("<div")[1:] if 'id="swagger-ui"' in part]
    assert '<a href="/admin/openapi.json">' in shown.partition("</div>")[0]
    assert "/admin/workers" in described["paths"]
    await gateway.close()
