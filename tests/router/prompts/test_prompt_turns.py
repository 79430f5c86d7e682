"""Prompts derived through the gateway: every dialect, edits and forks, cold starts; and what happens when they are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prompt_stage import CHAT, MESSAGES, MODEL, RESPONSES, Json, PromptStage, prompt_stage, talk, until

from engine_adapters.prompt.sglang_chat import render_chat
from router.turn.record import TurnRecord

pytestmark = pytest.mark.slow

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "d " * 20, "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("run", "read")
]


async def all_held(stage: PromptStage, record: TurnRecord) -> int:
    """The thread's blocks, once the events of its worker name them all."""
    assert record.decision is not None
    index, worker, blocks = (
        stage.gateway.fleet.pools["default"].blocks,
        record.decision.chosen.prefill,
        stage.thread(record).blocks,
    )

    def held() -> int:
        match = index.match(blocks, 0.0).get(worker)
        return match.blocks if match else 0

    await until(lambda: held() == len(blocks), "the engine's events name our blocks")
    return len(blocks)


def exact(stage: PromptStage) -> None:
    assert ("count", "wrong") not in stage.compared
    assert ("whole", "wrong") not in stage.compared
    assert stage.fallbacks == {}


async def test_every_dialects_blocks_are_the_engines() -> None:
    async with prompt_stage({"verify_every": 1}) as stage:
        for path, bodies in {
            CHAT: [{"messages": talk(turns), "tools": TOOLS} for turns in (1, 2, 3)],
            MESSAGES: [
                {"system": talk(1)[0]["content"], "messages": talk(turns, topic="net")[1:], "max_tokens": 4}
                for turns in (1, 2, 3)
            ],
            RESPONSES: [
                {"instructions": "Be brief.\n" * 30, "input": talk(turns, topic="cpu")[1:], "max_output_tokens": 4}
                for turns in (1, 2, 3)
            ],
        }.items():
            for body in bodies:
                record = await stage.turn(body, path)
                assert await all_held(stage, record) > 5, path
        exact(stage)
        assert stage.compared == {("count", "right"): 9, ("whole", "right"): 9}
        states = {(path, trust.level.value, trust.verified) for _, path, trust in stage.prompts.models()}
        assert states == {(path, "exact", 3) for path in (CHAT, MESSAGES, RESPONSES)}
        assert stage.prompts.reader is not None
        assert stage.prompts.reader.cache.counts.continued == 6


async def test_a_known_thread_is_placed_by_its_blocks() -> None:
    async with prompt_stage() as stage:
        first = await stage.turn({"messages": talk(2)})
        blocks = len(stage.thread(first).blocks)
        second = await stage.turn({"messages": talk(3)})
        assert second.decision is not None
        assert second.worker == first.worker
        assert second.decision.chosen.cut_tokens >= blocks * 16
        exact(stage)


async def test_edits_and_forks_go_on_from_the_right_ancestor() -> None:
    async with prompt_stage({"verify_every": 1}) as stage:
        for turns in range(2, 7):
            first = await stage.turn({"messages": talk(turns), "tools": TOOLS})
        long = talk(6)
        for place in (7, 9):
            edited = [*long[:place], {"role": "user", "content": "No: rather look at memory."}]
            forked = await stage.turn({"messages": edited, "tools": TOOLS})
            assert (forked.kind, forked.worker) == ("fork", first.worker)
            assert forked.decision is not None
            assert forked.decision.chosen.cut_tokens > place * 16, "placed by what its ancestor left there"
            assert await all_held(stage, forked) > 0
        gone_on = await stage.turn({"messages": talk(7), "tools": TOOLS})
        assert gone_on.thread == first.thread
        cache = stage.prompts.reader.cache  # type: ignore[union-attr]
        assert (cache.counts.cold, cache.counts.begun_alike, cache.counts.continued) == (1, 2, 5)
        exact(stage)
        assert stage.compared["whole", "right"] == 8


async def test_compaction_and_reordered_tools_go_on_from_what_they_have_in_common() -> None:
    async with prompt_stage({"verify_every": 1}) as stage:
        for turns in range(2, 5):
            first = await stage.turn({"messages": talk(turns), "tools": TOOLS}, key="k")
        compact = [talk(1)[0], {"role": "user", "content": "Summary so far: disks are fine.\n" * 5}]
        compacted = await stage.turn({"messages": compact, "tools": TOOLS}, key="k")
        assert (compacted.kind, compacted.thread) == ("compacted", f"{first.thread}.2")
        reordered = await stage.turn({"messages": compact, "tools": TOOLS[::-1]}, key="k")
        for record in (compacted, reordered):
            assert await all_held(stage, record) > 0
        assert stage.thread(compacted).blocks != stage.thread(reordered).blocks
        exact(stage)
        assert stage.compared["whole", "right"] == 5


async def test_a_new_conversation_is_found_by_its_blocks_when_its_lineage_is_unknown() -> None:
    """As after a restart: the engines tell what they hold, the gateway has never seen the thread."""
    async with prompt_stage({"cold_deadline_ms": 2000.0}) as stage:
        first = await stage.turn({"messages": talk(8, lines=40)})
        await all_held(stage, first)
        for _, thread in list(stage.gateway.threads._threads.items()):
            stage.gateway.threads._threads.pop(thread.id)
        stage.gateway.threads._owners.clear()
        pool = stage.gateway.fleet.pools["default"]
        for worker in pool.workers.values():
            for key in worker.keys:
                pool.lineage.clear(key)
        stage.prompts.reader.cache.forget(first.thread)  # type: ignore[union-attr]
        again = await stage.turn({"messages": talk(9, lines=40)})
        assert again.kind == "new"
        assert again.worker == first.worker
        assert again.decision is not None
        assert again.decision.chosen.cut_tokens > 1000
        exact(stage)


async def test_a_prompt_that_comes_too_late_still_enters() -> None:
    async with prompt_stage({"cold_deadline_ms": 0.001}) as stage:
        await stage.turn({"messages": talk(1, topic="warm")})
        record = await stage.turn({"messages": talk(5, lines=60)})
        assert stage.fallbacks.get("late", 0) >= 1
        assert len(stage.thread(record).blocks) > 50
        assert stage.compared["count", "right"] == 2


def salted(turns: int) -> Json:
    return {"messages": talk(turns), "cache_salt": "tenant-a"}


async def test_salts_are_part_of_the_blocks_and_what_cannot_be_derived_goes_by_lineage() -> None:
    async with prompt_stage() as stage:
        plain = await stage.turn({"messages": talk(2)})
        other = await stage.turn(salted(2))
        assert await all_held(stage, other) > 0
        assert stage.thread(plain).blocks != stage.thread(other).blocks
        body: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 2}
        await stage.turn(body, "/v1/completions")
        assert stage.fallbacks == {"unsuited": 1}


async def test_ids_are_sent_along_for_threads_that_were_found_exact() -> None:
    """Not for a thread's first turn, nor for the one in so many whose count is wanted."""
    settings = {"verify_every": 4, "forward_ids": True, "cold_deadline_ms": 5000.0}
    async with prompt_stage(settings, workers=1) as stage:
        for turns in range(1, 8):
            await stage.turn({"messages": talk(turns), "tools": TOOLS})
        engine = stage.engines[0]
        bodies = [json.loads(seen.body) for seen in engine.journal.seen]
        sent = [body.pop("input_ids", None) for body in bodies]
        assert [ids is not None for ids in sent] == [False, True, True, True, False, True, True]
        for body, ids in zip(bodies, sent, strict=True):
            assert ids in (None, engine.tokenizer.encode_prompt(render_chat(engine.template, body)))
        assert stage.prompts.counts.forwarded == 5
        exact(stage)
        assert stage.compared["count", "right"] == 7
        assert stage.prompts.trust(MODEL, CHAT).agreed == 2, "what an engine counts of ids that it was given says nothing"


async def test_a_client_that_brings_its_own_ids_goes_by_lineage() -> None:
    async with prompt_stage() as stage:
        await stage.turn({"messages": talk(1), "input_ids": [1, 2, 3]})
        assert stage.fallbacks == {"refused": 1}


async def test_hashes_alone_are_enough() -> None:
    async with prompt_stage({"keep_ids": False, "verify_every": 1}) as stage:
        for turns in (1, 2, 3):
            record = await stage.turn({"messages": talk(turns, lines=30), "tools": TOOLS})
            assert await all_held(stage, record) > 5
        exact(stage)
        assert stage.compared == {("count", "right"): 3, ("whole", "right"): 3}


async def test_a_burst_of_subagents_shares_its_parents_prompt() -> None:
    async with prompt_stage() as stage:
        for turns in range(2, 7):
            parent = await stage.turn({"messages": talk(turns, lines=30), "tools": TOOLS})
        cache = stage.prompts.reader.cache  # type: ignore[union-attr]
        before = cache.used_bytes
        history = talk(6, lines=30)[:9]
        for number in range(8):
            record = await stage.turn({"messages": [*history, {"role": "user", "content": f"Part {number}?"}], "tools": TOOLS})
            assert record.kind == "fork"
            assert stage.thread(record).parent == parent.thread
            assert record.decision is not None
            if record.worker == parent.worker:
                assert record.decision.chosen.cut_tokens > 1000
        assert (cache.counts.cold, cache.counts.begun_alike) == (1, 8)
        assert cache.used_bytes < before + 8 * before / 3, "eight copies would be eight times as much"
        exact(stage)
