"""Whatever becomes of a prefetch, nodes are left with nothing of it; and each of its states is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prefetch_stage import (
    MODEL,
    PAGE,
    PAGE_BYTES,
    SPACE,
    Stage,
    agent_here,
    digests_of,
    nothing_left,
    prefetch_stage,
    talk,
    turn,
    until,
)

from bench.prefetch.slow_link import slow_link
from costmodel.values import Tier
from engine_adapters.emulator.model.params import EngineParams
from kvtier.page.key import PageKeys
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import JobState

pytestmark = pytest.mark.slow

IDS = [13 + number % 700 for number in range(40 * PAGE)]
BY_HAND = {"warm": False, "triggers": ["explicit"]}


@asynccontextmanager
async def elsewhere(folder: Path, messages: list[dict[str, Any]]) -> AsyncIterator[tuple[Stage, str]]:
    """A thread whose KV lies on `b`, and in no engine."""
    async with prefetch_stage(folder, prefetch=BY_HAND) as stage:
        thread = await turn(stage, messages)
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        await stage.put("b", ids)
        for engine in stage.engines:
            await engine.flush(1.0)
        await until(lambda: len(sources_of(stage, thread)) == 1, "flushed")
        yield stage, thread


def sources_of(stage: Stage, thread: str) -> set[str]:
    known = stage.gateway.threads.get(thread)
    assert known is not None
    return stage.sources(known.blocks)


@pytest.mark.parametrize("how", ["thread", "messages", "tokens", "hashes"])
async def test_the_turn_that_a_prompt_was_named_for_uses_it(tmp_path: Path, how: str) -> None:
    async with elsewhere(tmp_path, talk("disks")) as (stage, thread):
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        digests = digests_of(ids)
        named: dict[str, Any] = {
            "thread": thread,
            "messages": talk("disks"),
            "tokens": list(ids),
            "hashes": [digests[at : at + 32].hex() for at in range(0, len(digests), 32)],
        }
        asked = await stage.ask(**{how: named[how]}, model=MODEL, worker="u-a")
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["subject"] == thread) == ("ready", how == "thread")
        await turn(stage, talk("disks"))
        placed = stage.gateway.turns.records.newest(1)[0].decision
        assert placed is not None
        assert placed.chosen.prefill.worker_id == "u-a"
        used = await stage.until_state(asked["id"], "consumed", "cancelled", "expired")
        assert (used["state"], used["subject"]) == ("consumed", thread)
        tally = stage.gateway.prefetch.prefetcher.planner.tallies[Trigger.EXPLICIT]
        assert tally.jobs == {JobState.CONSUMED: 1}
        await nothing_left(stage)


async def test_a_named_prompt_is_nobody_s_who_begins_otherwise(tmp_path: Path) -> None:
    async with elsewhere(tmp_path, talk("disks")) as (stage, _):
        asked = await stage.ask(messages=talk("disks"), model=MODEL, worker="u-a")
        await stage.until_state(asked["id"], "ready", "failed")
        await turn(stage, talk("clouds"), "other")
        assert (await stage.look(asked["id"]))["state"] == "ready"
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


async def test_a_thread_that_names_no_page_is_told_as_such(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, nodes=("a",)) as stage:
        thread = await turn(stage, [{"role": "user", "content": "x"}])
        for path in ("/v1/kv/prefetch", "/v1/kv/pins"):
            reply = await stage.http.post(path, json={"thread": thread})
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (409, "thread_without_pages", "thread")


async def test_one_that_is_taken_back_at_once_is_taken_back_at_the_agent(tmp_path: Path) -> None:
    """Its order may be on the wire, and so may the lease that the agent asks of the other one."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        await stage.put("b", IDS)
        for _ in range(20):
            asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
            gone = await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
            assert gone.json()["state"] == "cancelled"
        await nothing_left(stage)
        assert stage.agents["b"].store.counters.leases_expired == 0


async def test_a_source_that_is_gone_is_not_its_destination_s_fault(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        await stage.put("b", IDS)
        peers = stage.gateway.prefetch.agents.peers
        peers["b"] = msgspec.structs.replace(peers["b"], port=1)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        failed = await stage.until_state(asked["id"], "failed", "ready")
        assert failed["state"] == "failed"
        assert failed["reason"] in ("node_lost", "no_copy"), "the second where its absence was noticed before"
        links = stage.gateway.prefetch.prefetcher._links
        assert (links.node("a").up, links.node("b").up) == (True, False)
        await nothing_left(stage)


async def test_pages_of_another_kv_type_are_no_obstacle(tmp_path: Path) -> None:
    """The engines of this model wrote with another one before: that space is still known, and has none of these pages."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        for agent in stage.agents.values():
            agent.store.meet(msgspec.structs.replace(SPACE, kv_dtype="float8"))
        await stage.put("b", IDS)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["moved_bytes"]) == ("ready", 40 * PAGE_BYTES)
        await until(lambda: stage.pinned("a") == 40 * PAGE_BYTES, "leased")
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


async def test_what_was_staged_is_leased_though_what_lies_before_it_is_in_the_engine_alone(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        thread = await turn(stage, talk("disks"))
        here = stage.gateway.turns.records.newest(1)[0].decision
        assert here is not None
        worker = here.chosen.prefill.worker_id
        node, other = worker.removeprefix("u-"), {"u-a": "b", "u-b": "a"}[worker]
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        whole = [*list(ids)[: len(ids) // PAGE * PAGE], *IDS]
        await stage.put(other, whole)
        asked = await stage.ask(tokens=whole, model=MODEL, worker=worker)
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert ready["moved_bytes"] == 40 * PAGE_BYTES
        await until(lambda: stage.pinned(node) == 40 * PAGE_BYTES, "leased")
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


@pytest.mark.parametrize("worker", ["u-a", "u-b"])
async def test_pages_come_from_the_node_s_own_ssd_and_from_another_one_s(tmp_path: Path, worker: str) -> None:
    """They lie on the SSD of `b` alone."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND, ssd=True) as stage:
        digests = await stage.put("b", IDS)
        store = stage.agents["b"].store
        await until(lambda: not stage.agents["b"].numbers()["unwritten_pages"], "written")
        for number in range(3):  # 600 pages: more than the pool holds
            await stage.put("b", [20_000 + number, *IDS * 5][: 200 * PAGE])
        pages = list(map(store.catalog.get, PageKeys(store.meet(SPACE), digests)))
        assert all(page is not None and not page.in_dram for page in pages)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker=worker)
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["moved_bytes"]) == ("ready", 40 * PAGE_BYTES)
        await until(lambda: stage.pinned(worker.removeprefix("u-")) == 40 * PAGE_BYTES, "leased")
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


async def test_a_prompt_larger_than_may_be_held_is_cut_to_that(tmp_path: Path) -> None:
    """200 pages on SSD alone; of the pool's 512 153 may be held."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND, ssd=True) as stage:
        ids, *others = ([number, *IDS * 5][: 200 * PAGE] for number in range(4))
        await stage.put("b", ids)
        await until(lambda: not stage.agents["b"].numbers()["unwritten_pages"], "written")
        for each in others:
            await stage.put("b", each)
        await until(lambda: not stage.agents["b"].numbers()["unwritten_pages"], "written")
        await until(lambda: stage.gateway.prefetch.prefetcher._links.node("b").stage_bytes < 16 << 20, "told")
        read_bytes = stage.agents["b"].numbers()["ssd_read_bytes"]
        asked = await stage.ask(tokens=ids, model=MODEL, worker="u-b")
        assert asked["planned_bytes"] <= 153 * PAGE_BYTES
        ready = await stage.until_state(asked["id"], "ready", "failed", "expired")
        assert (ready["state"], ready["ready_tokens"]) == ("ready", 153 * PAGE)
        assert stage.agents["b"].numbers()["ssd_read_bytes"] - read_bytes == ready["moved_bytes"] == 153 * PAGE_BYTES
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


async def test_a_lease_that_is_refused_is_counted_and_told(tmp_path: Path) -> None:
    """Of 16 MiB 0.3 may be pinned: 153 pages."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        first, second = ([number, *IDS * 3][: 100 * PAGE] for number in (1, 2))
        await stage.put("b", first)
        await stage.put("b", second)
        executor = stage.gateway.prefetch.prefetcher.executor
        handles = []
        for ids in (first, second):
            handles.append((await stage.ask(tokens=ids, model=MODEL, worker="u-a"))["id"])
            assert (await stage.until_state(handles[-1], "ready", "failed"))["ready_tokens"] == 100 * PAGE
            await until(lambda: stage.pinned("a") == 100 * PAGE_BYTES, "leased")
        await until(lambda: executor.leases_refused == 1, "refused")
        assert [(await stage.look(handle))["leased"] for handle in handles] == [True, False]
        assert (await stage.http.get("/admin/tiers")).json()["prefetch"]["leases_refused"] == 1
        for handle in handles:
            await stage.http.delete(f"/v1/kv/prefetch/{handle}")
        await nothing_left(stage)


async def test_the_prompts_of_running_jobs_are_not_forgotten_for_others(tmp_path: Path) -> None:
    """Asks beyond `max_jobs` fail; those that run go on."""
    async with prefetch_stage(tmp_path, prefetch={**BY_HAND, "max_jobs": 1}) as stage:
        await stage.put("b", IDS)
        peers = stage.gateway.prefetch.agents.peers
        async with slow_link(peers["b"].port, 512 * 1024.0) as (link, port):
            peers["b"] = msgspec.structs.replace(peers["b"], port=port)
            asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
            await until(lambda: link.passed_bytes > 0, "under way")
            refused = await asyncio.gather(*(stage.ask(tokens=IDS[: number * PAGE], model=MODEL) for number in range(1, 20)))
            assert {(each["state"], each["reason"]) for each in refused} == {("failed", "no_room")}
            ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["ready_tokens"]) == ("ready", len(IDS))


@pytest.mark.parametrize(("bytes_", "state", "tokens"), [(PAGE_BYTES - 1, "failed", 0), (PAGE_BYTES, "ready", PAGE)])
async def test_no_more_is_moved_than_was_allowed(tmp_path: Path, bytes_: int, state: str, tokens: int) -> None:
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        await stage.put("b", IDS)
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a", max_bytes=bytes_)
        ended = await stage.until_state(asked["id"], "ready", "failed")
        assert (ended["state"], ended["ready_tokens"], ended["moved_bytes"]) == (state, tokens, tokens // PAGE * PAGE_BYTES)
        assert ended["reason"] == ("no_room" if state == "failed" else None)


async def test_no_more_is_moved_than_was_allowed_though_pages_weigh_more(tmp_path: Path) -> None:
    """By the configuration all 40 would fit."""
    async with prefetch_stage(tmp_path, prefetch=BY_HAND, token_bytes=100.0) as stage:
        digests, others = await stage.put("b", IDS), await stage.put("b", [9, *IDS])
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a", max_bytes=10 * PAGE_BYTES)
        ready = await stage.until_state(asked["id"], "ready", "failed")
        assert (ready["state"], ready["ready_tokens"], ready["moved_bytes"]) == ("ready", 10 * PAGE, 10 * PAGE_BYTES)
        assert stage.leading("a", digests) == 10
        little = await stage.ask(tokens=[9, *IDS], model=MODEL, worker="u-a", max_bytes=PAGE_BYTES - 1)
        ended = await stage.until_state(little["id"], "ready", "failed")
        assert (ended["state"], ended["reason"], ended["moved_bytes"]) == ("failed", "no_room", 0)
        assert stage.leading("a", others) == 0
        await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")
        await nothing_left(stage)


async def test_bytes_are_not_bounded_before_a_page_s_size_is_known(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch=BY_HAND, token_bytes=None) as stage:
        for ids in (IDS, [9, *IDS]):
            await stage.put("b", ids)
        bounded = {"model": MODEL, "worker": "u-a", "max_bytes": 10 * PAGE_BYTES}
        refused = await stage.ask(tokens=IDS, **bounded)
        assert (refused["state"], refused["reason"]) == ("failed", "no_size")
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        assert (await stage.until_state(asked["id"], "ready", "failed"))["state"] == "ready"
        told = await stage.ask(tokens=[9, *IDS], **bounded)
        ready = await stage.until_state(told["id"], "ready", "failed")
        assert (ready["state"], ready["moved_bytes"]) == ("ready", 10 * PAGE_BYTES)


async def test_a_handle_is_another_gateway_s_alone(tmp_path: Path) -> None:
    async with prefetch_stage(tmp_path, prefetch=BY_HAND) as stage:
        await stage.put("b", IDS)
        handle = (await stage.ask(tokens=IDS, model=MODEL, worker="u-a"))["id"]
        _, life, number = handle.split("-")
        reply: httpx.Response = await stage.http.delete(f"/v1/kv/prefetch/pf-{int(life, 16) ^ 1:06x}-{number}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "prefetch_not_found")
        assert (await stage.until_state(handle, "ready", "cancelled"))["state"] == "ready"


@asynccontextmanager
async def slowly(folder: Path, **engines: Any) -> AsyncIterator[tuple[Stage, str]]:
    """A prefetch to `u-a` in the middle of a transfer that would take ten seconds."""
    async with prefetch_stage(folder, prefetch=BY_HAND, **engines) as stage:
        await stage.put("b", IDS)
        peers = stage.gateway.prefetch.agents.peers
        async with slow_link(peers["b"].port, 128 * 1024.0) as (link, port):
            peers["b"] = msgspec.structs.replace(peers["b"], port=port)
            asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
            await until(lambda: link.passed_bytes > PAGE_BYTES, "under way")
            seen = await stage.look(asked["id"])
            assert (seen["state"], seen["ready_tokens"]) == ("fetching", 0)
            yield stage, asked["id"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/admin/workers/u-a/drain"), ("DELETE", "/admin/workers/u-a")])
async def test_what_is_on_its_way_to_a_worker_that_leaves_is_taken_back(tmp_path: Path, method: str, path: str) -> None:
    async with slowly(tmp_path) as (stage, handle):
        assert (await stage.http.request(method, path)).status_code == 200
        ended = await stage.until_state(handle, "cancelled", "failed", "ready")
        assert ended["state"] == "cancelled"
        await nothing_left(stage)


async def test_another_policy_takes_nothing_back(tmp_path: Path) -> None:
    async with slowly(tmp_path) as (stage, handle):
        assert (await stage.http.put("/admin/policy", json={"name": "round_robin"})).status_code == 200
        assert (await stage.look(handle))["state"] == "fetching"
        await stage.http.delete(f"/v1/kv/prefetch/{handle}")
        await nothing_left(stage)


async def test_a_gateway_that_closes_takes_everything_back(tmp_path: Path) -> None:
    async with slowly(tmp_path) as (stage, _):
        await stage.put("a", [7, *IDS])
        await stage.ask(tokens=[7, *IDS], model=MODEL, worker="u-a")
        await until(lambda: stage.pinned("a"), "leased")
        await stage.gateway.prefetch.close()
        for agent in stage.agents.values():
            await until(lambda agent=agent: not agent.stager._tasks, "stages over")
            for number in ("leases", "pinned_bytes"):
                await until(lambda agent=agent, number=number: not agent.numbers()[number], f"{number} given back")


async def test_an_agent_that_was_restarted_has_lost_what_lay_ready_there(tmp_path: Path) -> None:
    """Even where it was away for too short a time to be missed."""
    async with slowly(tmp_path) as (stage, handle):
        await stage.put("a", [7, *IDS])
        ready = await stage.ask(tokens=[7, *IDS], model=MODEL, worker="u-a")
        await until(lambda: stage.pinned("a"), "leased")
        config = {**stage.agent_configs["a"], "socket": str(tmp_path / "again.sock")}
        async with agent_here(config, epoch=2) as again:
            peers = stage.gateway.prefetch.agents.peers
            peers["a"] = msgspec.structs.replace(peers["a"], port=again.port)
            for each in (handle, ready["id"]):
                ended = await stage.until_state(each, "failed", "expired")
                assert (ended["state"], ended["reason"]) == ("failed", "node_lost")
            prefetcher = stage.gateway.prefetch.prefetcher
            await until(lambda: prefetcher._links.node("a").up, "found again")
            assert (prefetcher.executor.running, prefetcher.executor.leases) == (0, 0)


@pytest.mark.parametrize("mode", ["disabled", "dry_run"])
async def test_switched_off_it_takes_everything_back_and_asks_for_nothing(tmp_path: Path, mode: str) -> None:
    async with slowly(tmp_path) as (stage, handle):
        switched = await stage.http.put("/admin/prefetch", json={"mode": mode})
        assert (switched.status_code, switched.json()["mode"]) == (200, mode)
        assert (await stage.look(handle))["state"] == "cancelled"
        refused = await stage.http.post("/v1/kv/prefetch", json={"tokens": IDS})
        assert (refused.status_code, mode in refused.json()["error"]["message"]) == (409, True)
        await nothing_left(stage)
        await stage.http.put("/admin/prefetch", json={"mode": "enabled"})
        again = await stage.ask(tokens=IDS, model=MODEL, worker="u-a")
        assert again["state"] == "fetching"
        await stage.http.delete(f"/v1/kv/prefetch/{again['id']}")
        await nothing_left(stage)


@pytest.mark.parametrize(
    ("prefetch", "counts"),
    [({}, True), ({"mode": "dry_run"}, False), ({"triggers": ["tool_call"]}, False)],
    ids=["enabled", "dry run", "nothing at the decision"],
)
async def test_turns_are_placed_by_pages_of_other_nodes_where_these_are_brought(
    tmp_path: Path, prefetch: dict[str, Any], counts: bool
) -> None:
    async with prefetch_stage(tmp_path, prefetch={"warm": False, **prefetch}) as stage:
        thread = await turn(stage, talk("disks"))
        ids = stage.gateway.prefetch.subjects.ids(thread)
        assert ids is not None
        await stage.put("b", ids)
        for worker in ("u-a", "u-b"):
            assert (await stage.http.post(f"/admin/workers/{worker}/flush")).status_code == 200
        await until(lambda: len(sources_of(stage, thread)) == 1, "flushed")
        body = {"model": MODEL, "messages": talk("disks"), "max_tokens": 8}
        reply = await stage.http.post("/admin/explain", json=body, headers={"x-session-id": "mine"})
        told = reply.json()
        tiers = {each["worker"]: each["hit_tier"] for each in (told["chosen"], *told["others"])}
        assert tiers == {"u-b": "L3", "u-a": "L3" if counts else None}


@pytest.mark.parametrize("deadline_ms", [0.001, 1])
async def test_a_deadline_that_nothing_can_keep_expires(tmp_path: Path, deadline_ms: float) -> None:
    async with slowly(tmp_path) as (stage, handle):
        await stage.http.delete(f"/v1/kv/prefetch/{handle}")
        asked = await stage.ask(tokens=IDS, model=MODEL, worker="u-a", deadline_ms=deadline_ms)
        assert (await stage.until_state(asked["id"], "expired", "failed", "ready"))["state"] == "expired"
        await nothing_left(stage)


async def test_a_warm_request_is_taken_back_at_its_engine(tmp_path: Path) -> None:
    """L2 loads back at 20 MB/s."""
    slow = EngineParams(
        kv_tokens=3_072,
        host_kv_tokens=65_536,
        context_tokens=3_000,
        page_tokens=PAGE,
        host_write_bytes_per_ms=1e9,
        load_back_bytes_per_ms=20_000.0,
    )
    async with prefetch_stage(tmp_path, nodes=("a",), params=slow, prefetch={"triggers": ["explicit"]}) as stage:
        thread = await turn(stage, talk("disks", 240))
        await turn(stage, talk("clouds", 400), "other")
        await until(lambda: Tier.L2 in stage.tiers(thread), "displaced, and the gateway heard of it")
        engine = stage.engines[0]
        asked = await stage.ask(thread=thread)
        await until(lambda: engine.driver.rids, "warming")
        (ledger,) = stage.gateway.fleet.find("u-a")[1].ranks
        assert ledger.warming == 1, "or the engine's report would make it look busy"
        assert (await stage.look(asked["id"]))["state"] == "ready"
        assert (await stage.http.delete(f"/v1/kv/prefetch/{asked['id']}")).json()["state"] == "cancelled"
        await until(lambda: engine.journal.abort_calls, "told")
        await until(lambda: not engine.driver.rids, "stopped")
        assert ledger.warming == 0
        await nothing_left(stage)


async def test_another_ask_for_a_thread_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with elsewhere(tmp_path, talk("disks")) as (stage, thread):
        first = await stage.ask(thread=thread, worker="u-a")
        second = await stage.ask(thread=thread, worker="u-a")
        assert (await stage.look(first["id"]))["state"] == "cancelled"
        assert (await stage.until_state(second["id"], "ready", "failed"))["state"] == "ready"
        gone = await stage.http.delete("/v1/kv/prefetch", params={"thread": thread})
        assert gone.status_code == 200
        assert (await stage.look(second["id"]))["state"] == "cancelled"
        await nothing_left(stage)
