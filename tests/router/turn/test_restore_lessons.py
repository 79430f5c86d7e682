"""Replies that say what came from where teach a gateway how long restores take, and everybody who asks is told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from emulated_site import MODEL, MODEL_DIR, emulated_engine, gateway_client, until
from prometheus_client.parser import text_string_to_metric_families
from prompt_stage import CHAT, PORTS

from costmodel.values import Tier
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.reply.plan import ReplyStyle
from loadback.admin_api import Workers, fetch
from loadback.doctor.gateway import check_calibration
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway

# L1 holds one of two prompts, L2 both; a prompt comes back in some 80 ms, where the prior says 20.
_PARAMS = EngineParams(
    kv_tokens=3_072,
    host_kv_tokens=65_536,
    prefill_base_ms=2.0,
    prefill_ms_per_token=0.01,
    prefill_ms_per_token2=0.0,
    decode_base_ms=0.5,
    load_back_bytes_per_ms=3.0e6,
)
_PATIENCE_S = 60.0
_HARDWARE = {"kv_bytes_per_token": _PARAMS.kv_bytes_per_token, "l2_link": {"latency_ms": 0.1, "gb_per_s": 12.0}}


class Session:
    """One client that asks again and again."""

    def __init__(self, http: httpx.AsyncClient, name: str, tokens: int) -> None:
        self._http = http
        self._name = name
        words = " ".join(f"{name}{number}" for number in range(tokens // 4))
        self._messages = [{"role": "system", "content": words}, {"role": "user", "content": "question"}]

    async def ask(self) -> None:
        body = {"model": MODEL, "max_tokens": 2, "stream": True, "messages": self._messages}
        reply = await self._http.post(CHAT, json=body, headers={"x-session-id": self._name})
        assert reply.status_code == 200, reply.text
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}]


@asynccontextmanager
async def site(kept: Path, prompt: dict[str, Any] | None) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with AsyncExitStack() as exits:
        _, url = await exits.enter_async_context(emulated_engine(_PARAMS, ReplyStyle(tool_rounds=0), PORTS))
        pool: dict[str, Any] = {"unified": [{"url": url, "name": "u0"}], "hardware": _HARDWARE}
        pools = [pool | ({"prompt": prompt} if prompt else {})]
        config = Config.model_validate({"pools": pools, "calibration": {"path": str(kept)}, "seed": 1})
        gateway = Gateway(config, system_clock, Random(1))
        yield gateway, await exits.enter_async_context(gateway_client(gateway))


async def compute_often(http: httpx.AsyncClient) -> None:
    for number in range(24):
        await Session(http, f"p{number}-", 100 + 60 * number).ask()


async def restore_often(gateway: Gateway, http: httpx.AsyncClient, turn: int = 0) -> None:
    """Two conversations, new ones each time, that push each other out of L1."""
    sessions = Session(http, f"a{turn}-", 1_800), Session(http, f"b{turn}-", 1_800)
    for _ in range(20):
        for session in sessions:
            await session.ask()
            await until(lambda: not gateway.extender.busy, "its prompt is known")


async def restore_until(gateway: Gateway, http: httpx.AsyncClient, timed: int) -> None:
    """Until that many restores were timed: where first tokens come late for other reasons, few are."""
    links = gateway.fleet.find("u0")[1].links
    async with asyncio.timeout(_PATIENCE_S):
        for turn in itertools.count():
            await restore_often(gateway, http, turn)
            if sum(view.replies for view in links.views() if view.tier is Tier.L2) >= timed:
                return


@pytest.mark.slow
async def test_a_gateway_learns_what_the_host_tier_takes_and_keeps_it(tmp_path: Path) -> None:
    async with site(tmp_path / "kept.json", {"model_dir": str(MODEL_DIR), "cold_deadline_ms": 0}) as (gateway, http):
        links = gateway.fleet.find("u0")[1].links
        believed = links.restore[Tier.L2].bytes_per_ms
        await compute_often(http)
        await restore_until(gateway, http, timed=10)
        worker = (await fetch(http, "/admin/workers", Workers)).workers[0]
        shown = {link.tier: link for link in worker.links}
        assert shown["L3"].replies == 0
        assert shown["L2"].bytes_per_ms < believed, "slower than was thought"
        (check,) = (check for check in check_calibration(worker) if check.name == "restore from L2")
        assert f"{shown['L2'].replies} replies" in check.found
        families = text_string_to_metric_families((await http.get("/metrics")).text)
        family = next(each for each in families if each.name == "loadback_restore_bytes_per_second")
        told = {each.labels["tier"]: each.value for each in family.samples}
        assert told["L2"] == pytest.approx(1000 * shown["L2"].bytes_per_ms)
        gateway.calibration.save()
        again = Gateway(gateway.config, system_clock, Random(1))
        assert again.fleet.find("u0")[1].links.known() == links.known()
        await again.close()


@pytest.mark.slow
async def test_where_tiers_are_not_known_replies_teach_no_link(tmp_path: Path) -> None:
    """Without a tokenizer all that was routed counts as L1: a link that nobody reckons with must not take from prefill."""
    async with site(tmp_path / "kept.json", None) as (gateway, http):
        worker = gateway.fleet.find("u0")[1]
        await compute_often(http)
        await restore_often(gateway, http)
        assert {view.replies for view in worker.links.views()} == {0}
        records = gateway.turns.records.newest(40)
        assert sum(1 for each in records if each.facts and (each.facts.cached_by_tier or {}).get(Tier.L2)) > 20
