"""SGLang's captured KV events decode, and their hashes are those of the project's own chain over the captured token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.values import Tier
from engine_adapters.base import AdapterError
from engine_adapters.sglang.events import decode_events
from kvtier.hashing.sglang import event_ids
from kvtier.index.events import AllCleared, BlocksRemoved, BlocksStored

DATA = Path(__file__).parents[2] / "data" / "engines"
CAPTURES = ("sglang_kv_events", "sglang_hicache_kv_events", "sglang_pd_kv_p0", "sglang_pd_kv_d0")
I64 = st.integers(-(2**63), 2**63 - 1)


def payloads(capture: str) -> Iterator[bytes]:
    for line in (DATA / f"{capture}.jsonl").read_text().splitlines():
        yield bytes.fromhex(json.loads(line)["payload_hex"])


def pack(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


@pytest.mark.parametrize("capture", CAPTURES)
def test_captures_decode_event_for_event(capture: str) -> None:
    for payload in payloads(capture):
        stamp, wire, rank = msgspec.msgpack.decode(payload)
        batch = decode_events(payload)
        assert (batch.timestamp_s, batch.dp_rank) == (stamp, rank)
        assert [shape_of(event) for event in batch.events] == [wire_shape(event) for event in wire]


def shape_of(event: object) -> tuple[object, ...]:
    if isinstance(event, BlocksStored):
        return ("BlockStored", list(event.hashes), event.parent, event.tier, event.block_tokens)
    assert isinstance(event, BlocksRemoved)
    return ("BlockRemoved", list(event.hashes), event.tier)


def wire_shape(event: dict[str, Any]) -> tuple[object, ...]:
    tier = {"GPU": Tier.L1, "CPU_PINNED": Tier.L2}[event["medium"]]
    if event["type"] == "BlockStored":
        return ("BlockStored", event["block_hashes"], event.get("parent_block_hash"), tier, event["block_size"])
    return ("BlockRemoved", event["block_hashes"], tier)


@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_hashes_are_the_chain_over_the_captured_tokens(capture: str) -> None:
    prompts: dict[int, list[int]] = {}  # block -> the tokens up to and with it
    checked = 0
    for payload in payloads(capture):
        for event in msgspec.msgpack.decode(payload)[1]:
            parent = event.get("parent_block_hash")
            if event["type"] != "BlockStored" or (parent is not None and parent not in prompts):
                continue
            size = event["block_size"]
            for index, block in enumerate(event["block_hashes"]):
                tokens = prompts.get(parent, []) + event["token_ids"][: (index + 1) * size]
                assert event_ids(tokens, size)[-1] == block
                prompts[block] = tokens
                checked += 1
    assert checked > 0


@given(
    hashes=st.lists(I64, min_size=1), parent=st.none() | I64, medium=st.sampled_from(["GPU", "CPU_PINNED", "DISK", "EXTERNAL"])
)
def test_arrays_and_maps_say_the_same(hashes: list[int], parent: int | None, medium: str) -> None:
    stored = {
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [1],
        "block_size": 4,
        "lora_id": None,
        "medium": medium,
    }
    removed = {"block_hashes": hashes, "medium": medium}
    as_maps = pack({"type": "BlockStored", **stored}, {"type": "BlockRemoved", **removed}, {"type": "AllBlocksCleared"})
    as_arrays = pack(["BlockStored", *stored.values()], ["BlockRemoved", *removed.values()], ["AllBlocksCleared"])
    assert decode_events(as_maps) == decode_events(as_arrays)
    assert decode_events(as_arrays).events[0] == BlocksStored(tuple(hashes), parent, tier_of(medium), 4)


def tier_of(medium: str) -> Tier:
    return {"GPU": Tier.L1, "CPU_PINNED": Tier.L2, "EXTERNAL": Tier.L3, "DISK": Tier.L4}[medium]


@given(value=I64)
def test_unsigned_and_bytes_hashes_become_the_signed_id(value: int) -> None:
    unsigned = value % 2**64
    digest = value.to_bytes(8, "big", signed=True) + bytes(24)
    for wire in (value, unsigned, digest):
        event = decode_events(pack(["BlockRemoved", [wire], "GPU"])).events[0]
        assert event == BlocksRemoved((value,), Tier.L1)


def test_bigram_tokens_are_no_obstacle() -> None:
    event = decode_events(pack(["BlockStored", [7], None, [[1, 2], [2, 3]], 2, None])).events[0]
    assert event == BlocksStored((7,), None, Tier.L1, 2)


def test_a_removal_without_a_medium_counts_for_every_tier() -> None:
    assert decode_events(pack(["BlockRemoved", [7]])).events == (BlocksRemoved((7,), None),)


def test_a_batch_may_be_a_map() -> None:
    payload = msgspec.msgpack.encode({"ts": 2.5, "events": [{"type": "AllBlocksCleared"}], "data_parallel_rank": 3})
    batch = decode_events(payload)
    assert (batch.timestamp_s, batch.events, batch.dp_rank) == (2.5, (AllCleared(),), 3)


def test_unknown_events_and_media_are_left_out() -> None:
    payload = pack(
        {"type": "BlockPinned", "x": 1}, ["Other"], ["BlockStored", [1], None, [], 4, None, "TAPE"], ["AllBlocksCleared"]
    )
    assert decode_events(payload).events == (AllCleared(),)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode(7), pack(["BlockStored", "x"]), pack({"type": "BlockRemoved"})]
)
def test_unreadable_payloads_raise(payload: bytes) -> None:
    with pytest.raises(AdapterError, match="KV event payload"):
        decode_events(payload)
