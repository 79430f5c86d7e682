"""Replies that say what came from where teach a gateway how long restores take, and everybody who asks is told."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from emulated_site import MODEL, emulated_engine, gateway_client, until
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
    kv_tokens=2_560,
    host_kv_tokens=65_536,
    prefill_base_ms=2.0,
    prefill_ms_per_token=0.01,
    prefill_ms_per_token2=0.0,
    decode_base_ms=0.5,
    load_back_bytes_per_ms=3.0e6,
)
_HARDWARE = {"kv_bytes_per_token": _PARAMS.kv_bytes_per_token, "l2_link": {"latency_ms": 0.1, "gb_per_s": 12.0}}


def chat(name: str, tokens: int, turn: int = 0) -> dict[str, Any]:
    words = " ".join(f"{name}{number}" for number in range(tokens // 4))
    messages = [{"role": "system", "content": words}, {"role": "user", "content": f"question {turn}"}]
    return {"model": MODEL, "max_tokens": 2, "stream": True, "messages": messages}


@pytest.mark.slow
async def test_a_gateway_learns_what_the_host_tier_takes_and_keeps_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as exits:
        _, url = await exits.enter_async_context(emulated_engine(_PARAMS, ReplyStyle(tool_rounds=0), PORTS))
        pool = {"unified": [{"url": url, "name": "u0"}], "hardware": _HARDWARE}
        kept = {"path": str(tmp_path / "calibration.json")}
        config = Config.model_validate({"pools": [pool], "calibration": kept, "seed": 1})
        gateway = Gateway(config, system_clock, Random(1))
        http = await exits.enter_async_context(gateway_client(gateway))
        links = gateway.fleet.find("u0")[1].links

        async def serve(body: dict[str, Any], session: str) -> None:
            reply = await http.post(CHAT, json=body, headers={"x-session-id": session})
            assert reply.status_code == 200, reply.text

        for number in range(24):  # what computing takes comes first
            await serve(chat(f"p{number} ", 100 + 60 * number), f"p{number}")
        believed = links.restore[Tier.L2].bytes_per_ms
        for turn in range(30):
            for session in ("a", "b"):
                await serve(chat(session, 1_800, turn), session)
        await until(lambda: links.views()[0].replies >= 10, "restores were timed")
        worker = (await fetch(http, "/admin/workers", Workers)).workers[0]
        shown = {link.tier: link for link in worker.links}
        assert shown["L2"].bytes_per_ms < believed, "slower than was thought"
        assert (shown["L2"].replies, shown["L3"].replies) == (links.views()[0].replies, 0)
        (check,) = (check for check in check_calibration(worker) if check.name == "restore from L2")
        assert f"{shown['L2'].replies} replies" in check.found
        families = text_string_to_metric_families((await http.get("/metrics")).text)
        family = next(each for each in families if each.name == "loadback_restore_bytes_per_second")
        told = {each.labels["tier"]: each.value for each in family.samples}
        assert told["L2"] == pytest.approx(1000 * shown["L2"].bytes_per_ms)
        gateway.calibration.save()
        again = Gateway(config, system_clock, Random(1))
        assert again.fleet.find("u0")[1].links.known() == links.known()
        await again.close()
