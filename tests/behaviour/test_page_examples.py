"""The admin API's examples in docs/http.md have the members that the gateway answers with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from gateway_stage import Stage
from raw_client import CHAT

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def example(first_member: str) -> dict[str, Any]:
    """The page's JSON block that begins with this."""
    found = [block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if block.startswith(first_member)]
    assert len(found) == 1, first_member
    told = json.loads(found[0])
    assert isinstance(told, dict)
    return told


def members(value: Any, path: str = "") -> set[str]:
    """Paths of all members; of a list those of its first entry."""
    if isinstance(value, list):
        return members(value[0], path) if value else set()
    if not isinstance(value, dict):
        return set()
    return {f"{path}.{name}" for name in value}.union(*(members(inner, f"{path}.{name}") for name, inner in value.items()))


async def test_examples_have_the_members_of_the_answers(pd: Stage) -> None:
    turn = await pd.ask(max_tokens=3)
    assert turn.status == 200
    await pd.settled()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{pd.port}") as http:
        decisions = (await http.get("/admin/decisions?limit=1")).json()
        worker = (await http.get("/admin/workers")).json()["workers"][0]
        explained = (await http.post("/admin/explain", params={"path": CHAT}, json=pd.body())).json()
    assert members(example('{"decisions"')) == members(decisions)
    shown = example('{"id":"p1"')
    assert shown.pop("events")
    assert worker.pop("events") == [], "scripted engines publish none"
    assert members(shown) == members(worker)
    told = example('{"model":"tiny-agent","pool"')
    assert "…" in told["others"][0].pop("terms")
    for other in explained["others"]:
        assert other.pop("terms")
    assert members(told) == members(explained)
