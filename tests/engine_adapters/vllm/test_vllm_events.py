"""vLLM's captured KV events decode: unsigned ids, map events, evictions; bytes hashes count by their last eight bytes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from costmodel.values import Tier
from engine_adapters.vllm.events import decode_events
from kvtier.index.events import BlocksRemoved, BlocksStored

DATA = Path(__file__).parents[2] / "data" / "engines"


@pytest.mark.parametrize("capture", ["vllm_kv_events", "vllm_kv_evict_events"])
def test_captures_decode_with_signed_ids(capture: str) -> None:
    for line in (DATA / f"{capture}.jsonl").read_text().splitlines():
        payload = bytes.fromhex(json.loads(line)["payload_hex"])
        wire = msgspec.msgpack.decode(payload)[1]
        events = decode_events(payload).events
        assert [[hashed % 2**64 for hashed in event.hashes] for event in events if not isinstance(event, type)] == [
            event["block_hashes"] for event in wire
        ]
        assert {event.tier for event in events} == {Tier.L1}
        assert all(-(2**63) <= hashed < 2**63 for event in events for hashed in event.hashes)


def test_captured_evictions_are_removals() -> None:
    lines = (DATA / "vllm_kv_evict_events.jsonl").read_text().splitlines()
    kinds = {type(event) for line in lines for event in decode_events(bytes.fromhex(json.loads(line)["payload_hex"])).events}
    assert kinds == {BlocksStored, BlocksRemoved}


def test_bytes_hashes_count_by_their_last_eight_bytes() -> None:
    digest = bytes(24) + (2**64 - 5).to_bytes(8, "big")
    payload = msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "block_hashes": [digest], "medium": "CPU"}], 0])
    assert decode_events(payload).events == (BlocksRemoved((-5,), Tier.L2),)


def test_window_groups_of_hybrid_models_say_nothing_about_a_prefix() -> None:
    stored = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 16,
        "lora_id": None,
    }
    events = [stored | {"kv_cache_spec_kind": kind, "medium": "GPU"} for kind in ("sliding_window", "full_attention", "mamba")]
    assert len(decode_events(msgspec.msgpack.encode([0.0, events, 0])).events) == 1
