from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import zmq
import zmq.asyncio
from emulator_pool import FAST, unified

from costmodel.values import Tier
from engine_adapters import adapter_for
from engine_adapters.base import EngineKind
from engine_adapters.emulator.model.page_events import PagesCleared, PagesRemoved, PagesStored
from engine_adapters.emulator.worker.kv_publisher import KvPublisher, encode_events
from engine_adapters.launch.ports import free_ports
from engine_adapters.prompt.template import PromptTemplate
from kvtier.hashing.sglang import event_ids
from kvtier.index.events import AllCleared, BlocksStored

TOKENS = list(range(12))
HASHES = event_ids(TOKENS, 4)


def stored(first: int, last: int, tier: Tier = Tier.L1) -> PagesStored:
    return PagesStored(HASHES[first:last], HASHES[first - 1] if first else None, tier, TOKENS, first)


def test_a_store_is_a_map_in_the_engines_order() -> None:
    assert encode_events([stored(1, 3)], 4) == [
        {
            "type": "BlockStored",
            "block_hashes": list(HASHES[1:3]),
            "parent_block_hash": HASHES[0],
            "token_ids": TOKENS[4:12],
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
        }
    ]


def test_neighbours_merge_as_the_engines_recorder_merges_them() -> None:
    maps = encode_events([stored(0, 1), stored(1, 3), stored(0, 1, Tier.L2)], 4)
    assert [(one["medium"], len(one["block_hashes"])) for one in maps] == [("GPU", 3), ("CPU_PINNED", 1)]
    removed = [PagesRemoved(HASHES[2:], Tier.L1), PagesRemoved(HASHES[:2], Tier.L1), PagesCleared()]
    assert encode_events(removed, 4) == [
        {"type": "BlockRemoved", "block_hashes": [*HASHES[2:], *HASHES[:2]], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]


def test_a_salt_is_named_and_keeps_events_apart() -> None:
    salted = msgspec.structs.replace(stored(1, 2), cache_salt="tenant")
    maps = encode_events([stored(0, 1), salted], 4)
    assert [one.get("cache_salt") for one in maps] == [None, "tenant"]


async def replayed(port: int, start: int) -> list[tuple[int, bytes]]:
    """What the replay socket answers from sequence number `start` on."""
    context = zmq.asyncio.Context()
    found: list[tuple[int, bytes]] = []
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        async with asyncio.timeout(5.0):
            while True:
                _, topic, seq, payload = await dealer.recv_multipart()
                if int.from_bytes(seq, "big", signed=True) == -1:
                    assert (topic, payload) == (b"", b"")
                    break
                found.append((int.from_bytes(seq, "big"), payload))
    context.destroy(linger=0)
    return found


async def test_missed_batches_are_replayed_in_order() -> None:
    port, replay_port = free_ports(2)
    publisher = KvPublisher(port, replay_port, 4, "kv-events", buffer_steps=3)
    await publisher.start()
    try:
        for _ in range(5):
            publisher.publish([PagesCleared()])
        assert [seq for seq, _ in await replayed(replay_port, 0)] == [2, 3, 4]  # the buffer holds three
        assert [seq for seq, _ in await replayed(replay_port, 4)] == [4]
        assert await replayed(replay_port, 9) == []
    finally:
        await publisher.stop()


async def test_subscribers_get_what_the_router_reads_and_hashes_itself() -> None:
    port, replay_port = free_ports(2)
    async with unified(FAST, kv_port=port, kv_replay_port=replay_port) as emulated:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a few words " * 30}], "max_tokens": 4}
        reply = await emulated.post("/v1/chat/completions", body)
        batches = await replayed(replay_port, 0)
        events = [event for _, payload in batches for event in adapter_for(EngineKind.SGLANG).decode_events(payload).events]
        prompt = emulated.worker.tokenizer.encode_prompt(_rendered(emulated.worker.template, body["messages"]))
        assert len(prompt) == reply.json()["usage"]["prompt_tokens"]
        assert events[0] == AllCleared()
        told = [one for event in events if isinstance(event, BlocksStored) for one in event.hashes]
        assert tuple(told[: len(prompt) // 16]) == event_ids(prompt, 16)


def _rendered(template: PromptTemplate, messages: object) -> str:
    assert isinstance(messages, Sequence)
    return template.render(messages)
