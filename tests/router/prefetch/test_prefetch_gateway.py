"""The whole way: a client asks or a turn ends, agents move pages, engines restore, leases end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from prefetch_stage import EAGER, MODEL, PAGE, PAGE_BYTES, SPACE, Stage, digests_of, prefetch_stage, talk, until

from bench.prefetch.slow_link import slow_link
from costmodel.values import Tier
from engine_adapters.emulator.model.params import EngineParams
from kvtier.hashing.sglang import event_id
from kvtier.index.events import BlocksStored
from kvtier.index.source_key import NodeKey
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import JobState
from router.app import build_app, build_routes
from router.clock import system_clock
from router.config.tree import Config
from router.gateway import Gateway

pytestmark = pytest.mark.slow

IDS = [11 + number % 700 for number in range(40 * PAGE)]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


async def test_pages_come_from_another_node_and_are_leased(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch={"warm": False}) as stage:
        digests = await stage.put("b", IDS)
        assert stage.leading("a", digests) == 0
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a", deadline_ms=10_000)
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["node"], ready["ready_tokens"]) == ("ready", "a", len(IDS))
        assert ready["moved_bytes"] == ready["planned_bytes"] == 40 * PAGE_BYTES
        assert stage.leading("a", digests) == 40
        await until(lambda: stage.pinned("a") == 40 * PAGE_BYTES, "leased")
        gone = (await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")).json()
        assert gone["state"] == "cancelled"
        await until(lambda: stage.pinned("a") == 0, "given back")
        assert stage.leading("a", digests) == 40  # what has come stays
        metrics = (await stage.http.get("/metrics")).text.replace(
            'trigger="explicit",kind="moved"', 'kind="moved",trigger="explicit"'
        )
        assert f'loadback_prefetch_bytes_total{{kind="moved",trigger="explicit"}} {40 * PAGE_BYTES / 1e6}e+06' in metrics
        assert "loadback_prefetch_faults_total 0.0" in metrics
        tiers = (await stage.http.get("/admin/tiers")).json()
        assert tiers["prefetch"]["triggers"]["explicit"]["moved_bytes"] == 40 * PAGE_BYTES
        assert {agent["node"] for agent in tiers["agents"]} == {"a", "b"}


async def test_hashes_do_as_well_as_tokens(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path) as stage:
        digests = await stage.put("b", IDS)
        hashes = [digests[at : at + 32].hex() for at in range(0, len(digests), 32)]
        asked = await stage.ask(hashes=hashes, model=MODEL, worker="u-a", max_bytes=10 * PAGE_BYTES)
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["ready_tokens"]) == ("ready", 10 * PAGE)
        assert stage.leading("a", digests) == 10


async def test_bytes_are_counted_as_agents_tell_them(tmp_path: Path) -> None:
    """The configuration is off by twenty; the first stage says so."""
    async with prefetch_stage(tmp_path, token_bytes=100.0) as stage:
        planned = []
        for ids in (IDS, [9, *IDS]):
            await stage.put("b", ids)
            asked = await stage.ask(tokens=ids, model=MODEL, worker="u-a")
            await stage.until_state(asked["id"], "ready", "failed")
            planned.append(asked["planned_bytes"] / (len(ids) // PAGE * PAGE))
        assert planned == [100.0, PAGE_BYTES / PAGE]


async def test_what_was_planned_by_a_wrong_size_comes_whole(tmp_path: Path) -> None:
    """The first of four transfers tells how large pages are; the others were planned by then."""
    at_once = 100 * 10 * PAGE
    by_hand = {"warm": False, "triggers": ["explicit"], "chunk_bytes": at_once, "link_inflight_bytes": at_once}
    async with prefetch_stage(tmp_path, token_bytes=100.0, prefetch=by_hand) as stage:
        digests = await stage.put("b", IDS)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["ready_tokens"], stage.leading("a", digests)) == ("ready", len(IDS), 40)


async def test_a_prompt_that_nobody_has_is_told_as_such(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path) as stage:
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        assert (asked["state"], asked["reason"]) == ("failed", "no_copy")


async def test_pages_that_left_their_node_unheard_are_told_as_such(tmp_path: Path) -> None:
    """The index believes in pages that were evicted meanwhile."""
    async with prefetch_stage(tmp_path, prefetch={"warm": False}) as stage:
        await stage.put("b", IDS)
        await stage.gateway.tiers.followers.close()
        blocks = stage.gateway.fleet.pools["default"].blocks
        names = digests_of(IDS)
        hashes = tuple(event_id(names[at : at + 32]) for at in range(0, len(names), 32))
        blocks.apply(NodeKey("b"), BlocksStored(hashes, None, Tier.L3, PAGE), 0.0)
        blocks.set_trust(NodeKey("b"), trusted=True)
        stage.agents["b"].store.clear(stage.agents["b"].store.meet(SPACE))
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        failed = await stage.until_state(asked["id"], "failed", "ready")
        assert (failed["state"], failed["reason"]) == ("failed", "no_copy")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "exactly one"),
        ({"tokens": [1], "thread": "x"}, "exactly one"),
        ({"tokens": [1], "surprise": 1}, "surprise"),
        ({"tokens": [1], "worker": "nobody"}, "nobody"),
        ({"hashes": ["zz"]}, "hex"),
        ({"tokens": [1], "deadline_ms": -1}, "deadline_ms"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_name(tmp_path: Path, body: dict[str, Any], word: str) -> None:
    async with prefetch_stage(tmp_path, nodes=("a",)) as stage:
        reply = await stage.http.post("/v1/kv/prefetch", json=body)
        assert reply.status_code == 400
        assert word in reply.json()["error"]["message"]
        assert (await stage.http.get("/v1/kv/prefetch/pf-99")).status_code == 404


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"mode": "dry_run"}, "prefetch.mode is dry_run"),
        ({"mode": "disabled"}, "prefetch.mode is disabled"),
        ({"triggers": ["tool_call"]}, "prefetch.triggers"),
    ],
)
async def test_switched_off_it_names_the_key(section: dict[str, Any], key: str) -> None:
    async with _gateway({**EAGER, **section}) as gateway:
        transport = httpx.ASGITransport(build_app(gateway, build_routes(gateway)))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            reply = await http.post("/v1/kv/prefetch", json={"tokens": IDS, "model": MODEL})
    assert reply.status_code == 409
    error = reply.json()["error"]
    assert (error["code"], key in error["message"]) == ("prefetch_disabled", True)


async def test_switched_off_hooks_are_not_there() -> None:
    async with _gateway({**EAGER, "mode": "disabled"}) as gateway:
        assert gateway.dispatcher._watcher is None


async def turn(stage: Stage, messages: list[dict[str, Any]], key: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": messages, "max_tokens": 64, **more}
    reply = await stage.http.post("/v1/chat/completions", json=body, headers={"x-session-id": key})
    assert reply.status_code == 200, reply.text
    await until(lambda: not stage.gateway.extender.busy, "prompt made")
    return dict(reply.json())


async def test_a_thread_whose_tool_runs_is_brought_back_to_the_device(tmp_path: Path) -> None:
    """Its KV was displaced to the engine's host tier; a warm request brings it up before the tool's result comes."""
    small = EngineParams(
        speed=1000.0,
        kv_tokens=3_072,
        host_kv_tokens=65_536,
        context_tokens=3_000,
        page_tokens=PAGE,
        host_write_bytes_per_ms=1e9,
    )
    async with prefetch_stage(tmp_path, nodes=("a",), params=small, prefetch={"first_check_s": 0.3}) as stage:
        mine = talk("disks", 240)
        first = await turn(stage, mine, "mine", tools=TOOLS)
        assert first["choices"][0]["message"]["tool_calls"]
        await turn(stage, talk("clouds", 400), "other")
        tally = stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.TOOL_CALL]
        await until(lambda: tally.warmed_bytes > 0, "warmed")
        turns = stage.gateway.metrics.turns
        assert sum(turns.values()) == 2  # a warm request is no turn
        call = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "done"}
        await turn(stage, [*mine, call, result], "mine", tools=TOOLS)
        facts = stage.gateway.turns.records.newest(1)[0].facts
        assert facts is not None
        assert facts.cached_by_tier is not None
        assert {tier.name for tier, tokens in facts.cached_by_tier.items() if tokens} == {"L1"}


async def test_a_client_that_ends_its_thread_takes_its_job_back(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch={"warm": False}) as stage:
        await turn(stage, talk("disks", 100), "mine", tools=TOOLS)
        record = stage.gateway.turns.records.newest(1)[0]
        planner = stage.gateway.prefetch.prefetcher.planner
        await until(lambda: planner.watched_threads == 1, "watched")
        reply = await stage.http.delete("/v1/kv/prefetch", params={"thread": record.thread})
        assert reply.json() == {"thread": record.thread, "ended": True}
        await until(lambda: planner.watched_threads == 0, "forgotten")


async def test_a_thread_s_pages_are_staged_where_it_will_be_sent(tmp_path: Path) -> None:
    """By its id alone: token ids are the gateway's own, digests are made of them."""
    async with prefetch_stage(tmp_path, prefetch={"warm": False, "triggers": ["explicit"]}) as stage:
        await turn(stage, talk("disks", 200), "mine")
        thread = stage.gateway.turns.records.newest(1)[0].thread
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        digests = await stage.put("b", ids)
        assert digests == digests_of(ids)
        for engine in stage.engines:
            await engine.flush(1.0)
        await until(lambda: stage.tiers(thread) == {Tier.L3}, "flushed")
        asked = await stage.ask(thread=thread, worker="u-a")
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["ready_tokens"]) == ("ready", len(digests) // 32 * PAGE)
        assert stage.leading("a", digests) == len(digests) // 32
        await turn(
            stage, [*talk("disks", 200), {"role": "assistant", "content": "A."}, {"role": "user", "content": "B?"}], "mine"
        )
        ended = await stage.until_state(asked["id"], "consumed", "cancelled", "expired")
        assert ended["state"] in ("consumed", "cancelled")  # as the policy sent it
        await until(lambda: stage.pinned("a") == 0, "given back")


async def test_a_turn_waits_until_its_pages_have_come_from_another_node(tmp_path: Path) -> None:
    """Its worker is drained; what the next one lacks is staged there before the turn is sent to it."""
    async with prefetch_stage(tmp_path, prefetch={"warm": False, "triggers": ["decision"]}, l2_gb_per_s=50.0) as stage:
        await turn(stage, talk("disks", 450), "mine")
        record = stage.gateway.turns.records.newest(1)[0]
        here = record.decision.chosen.prefill.worker_id  # type: ignore[union-attr]
        there = {"u-a": "b", "u-b": "a"}[here]
        ids = stage.gateway.prefetch.subjects.ids(record.thread)
        assert ids is not None
        digests = await stage.put(here.removeprefix("u-"), ids)
        await stage.http.post(f"/admin/workers/{here}/drain")
        await turn(
            stage, [*talk("disks", 450), {"role": "assistant", "content": "A."}, {"role": "user", "content": "B?"}], "mine"
        )
        second = stage.gateway.turns.records.newest(1)[0]
        assert second.decision.chosen.prefill.worker_id == f"u-{there}"  # type: ignore[union-attr]
        assert stage.leading(there, digests) == len(digests) // 32
        tally = stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.DECISION]
        await until(lambda: tally.jobs[JobState.CONSUMED] == 1, "used")
        assert (tally.moved_bytes, tally.late_bytes) == (len(digests) // 32 * PAGE_BYTES, 0)
        assert stage.gateway.dispatcher.holds["default"].held == 1


async def test_an_agent_that_dies_fails_what_was_for_it(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch={"warm": False}) as stage:
        await stage.put("b", IDS)
        prefetcher = stage.gateway.prefetch.prefetcher
        peers = stage.gateway.prefetch.agents.peers
        peers["a"] = msgspec.structs.replace(peers["a"], port=1)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        failed = await stage.until_state(asked["id"], "failed", "ready")
        assert (failed["state"], failed["reason"]) == ("failed", "node_lost")
        assert not prefetcher._links.node("a").up
        assert prefetcher.executor.running == 0


@asynccontextmanager
async def _gateway(section: dict[str, Any]) -> AsyncIterator[Gateway]:
    tree = {"pools": [{"unified": [{"url": "http://127.0.0.1:1"}]}], "prefetch": section}
    gateway = Gateway(Config.model_validate(tree), system_clock, Random(1))
    try:
        yield gateway
    finally:
        await gateway.close()


@asynccontextmanager
async def fetching(folder: Path, **asked: Any) -> AsyncIterator[tuple[Stage, str]]:
    """A stage in the middle of a transfer from `b` to `a` over a link that would need some ten seconds for it."""
    async with prefetch_stage(folder, prefetch={"warm": False}) as stage:
        await stage.put("b", IDS)
        peers = stage.gateway.prefetch.agents.peers
        async with slow_link(peers["b"].port, 128 * 1024.0) as (link, port):
            peers["b"] = msgspec.structs.replace(peers["b"], port=port)
            handle = (await stage.ask(tokens=IDS, model=MODEL, worker="u-a", **asked))["id"]
            await until(lambda: link.passed_bytes > 2 * PAGE_BYTES, "under way")
            yield stage, handle


async def test_an_agent_that_dies_while_it_fetches_leaves_nothing_behind(tmp_path: Path) -> None:
    async with fetching(tmp_path) as (stage, handle):
        assert (await stage.look(handle))["state"] == "fetching"
        peers = stage.gateway.prefetch.agents.peers
        peers["a"] = msgspec.structs.replace(peers["a"], port=1)
        failed = await stage.until_state(handle, "failed")
        assert failed["reason"] == "node_lost"
        assert_nothing_left(stage)


async def test_a_transfer_that_is_taken_back_stops_at_the_agent(tmp_path: Path) -> None:
    async with fetching(tmp_path) as (stage, handle):
        assert (await stage.http.delete(f"/v1/kv/prefetch/{handle}")).json()["state"] == "cancelled"
        stager = stage.agents["a"].stager
        await until(lambda: all(job.ended for job in stager._jobs.values()), "stopped")
        assert {job.state.value for job in stager._jobs.values()} == {"cancelled"}
        assert_nothing_left(stage)


async def test_a_deadline_that_passes_ends_the_transfer(tmp_path: Path) -> None:
    async with fetching(tmp_path, deadline_ms=2_500) as (stage, handle):
        expired = await stage.until_state(handle, "expired", "failed")
        assert expired["state"] == "expired"
        assert_nothing_left(stage)


def assert_nothing_left(stage: Stage) -> None:
    prefetcher = stage.gateway.prefetch.prefetcher
    assert prefetcher.planner.board.budgets.idle
    assert (prefetcher.executor.running, prefetcher.executor.leases, prefetcher.crashes) == (0, 0, 0)
    assert stage.pinned("a") == 0


@pytest.mark.parametrize("handle", ["pf-\u00b2", "pf-" + "1" * 5000, "pf-", "x"])
async def test_a_handle_that_never_was(tmp_path: Path, handle: str) -> None:
    async with prefetch_stage(tmp_path, nodes=("a",)) as stage:
        for method in ("GET", "DELETE"):
            assert (await stage.http.request(method, f"/v1/kv/prefetch/{handle}")).status_code == 404


async def test_a_thread_that_never_was(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, nodes=("a",)) as stage:
        replies = [
            await stage.http.post("/v1/kv/prefetch", json={"thread": "nope"}),
            await stage.http.delete("/v1/kv/prefetch", params={"thread": "nope"}),
            await stage.http.post("/v1/kv/pins", json={"thread": "nope"}),
        ]
        for reply in replies:
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (404, "thread_not_found", "thread"), reply.text
        assert (await stage.http.get("/v1/kv/pins")).json()["data"] == []
        assert not stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.EXPLICIT].jobs


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": [1], "worker": "u-a#\u00b2"},
        {"tokens": [1], "worker": "u-a#" + "1" * 900},
        {"tokens": [True]},
        {"tokens": ["1"]},
        {"thread": "t" * 2000},
        {"tokens": [1], "cache_salt": "s" * 2000},
        {"messages": [{"role": "assistant", "tool_calls": [5]}]},
    ],
)
async def test_what_cannot_be_meant_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with prefetch_stage(tmp_path, nodes=("a",)) as stage:
        reply = await stage.http.post("/v1/kv/prefetch", json=body)
        assert reply.status_code == 400, reply.text
