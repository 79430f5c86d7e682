"""Whatever comes over the socket: an event payload is read or it is an `AdapterError`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine_adapters.base import AdapterError, EventBatch
from engine_adapters.sglang import events as sglang_events
from engine_adapters.vllm import events as vllm_events

STORED = {
    "block_hashes": [1, b"x" * 32, -5],
    "parent_block_hash": None,
    "token_ids": [1, [2, 3]],
    "block_size": 4,
    "medium": "GPU",
}
MAPS: list[Any] = [
    {"type": "BlockStored", **STORED},
    {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"},
    {"type": "AllBlocksCleared"},
    {"type": "Other", "x": 1},
]
ARRAYS: list[Any] = [
    ["BlockStored", [1, b"x" * 32, -5], 7, [1, [2, 3]], 4, None, "GPU"],
    ["BlockRemoved", [1]],
    ["AllBlocksCleared"],
    ["Odd", {}],
]
BATCHES: list[Any] = [[1.5, MAPS, 0], [1.5, ARRAYS, 0], {"ts": 2.5, "events": MAPS, "data_parallel_rank": 3}]
PAYLOADS = [msgspec.msgpack.encode(batch) for batch in BATCHES]
DEEP = b"\x91" * 100_000

decoders = pytest.mark.parametrize("decode", [sglang_events.decode_events, vllm_events.decode_events], ids=["sglang", "vllm"])
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=9)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8
)


def read(decode: Callable[[bytes], EventBatch], payload: bytes) -> None:
    with contextlib.suppress(AdapterError):
        assert isinstance(decode(payload), EventBatch)


@decoders
@given(
    st.sampled_from(PAYLOADS), st.lists(st.tuples(st.integers(0, 999), st.integers(0, 9), st.binary(max_size=6)), max_size=4)
)
def test_changed_bytes(decode: Callable[[bytes], EventBatch], payload: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    changed = bytearray(payload)
    for at, removed, added in edits:
        start = at % (len(changed) + 1)
        changed[start : start + removed] = added
    read(decode, bytes(changed))


@decoders
@given(st.sampled_from(BATCHES), st.data())
def test_changed_values(decode: Callable[[bytes], EventBatch], batch: Any, data: st.DataObject) -> None:
    def changed(value: Any, depth: int) -> Any:
        if data.draw(st.integers(0, 9)) == 0:
            return data.draw(values)
        if depth and isinstance(value, list):
            return [changed(item, depth - 1) for item in value]
        if depth and isinstance(value, dict):
            return {name: changed(item, depth - 1) for name, item in value.items()}
        return value

    read(decode, msgspec.msgpack.encode(changed(batch, 4)))


@decoders
@given(st.binary(max_size=60))
@example(b"\x92\xca\x00\x00\x00\x00\xdd\xff\xff\xff\xff")  # announces four thousand million events
def test_noise(decode: Callable[[bytes], EventBatch], payload: bytes) -> None:
    read(decode, payload)


@decoders
@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode([1.5, [[["a"]]]]),
        msgspec.msgpack.encode([1.5, [{"type": ["a"]}]]),
        msgspec.msgpack.encode([1.5, [{"type": {"a": 1}}]]),
        msgspec.msgpack.encode([1.5, [[msgspec.msgpack.Ext(7, b"x")]]]),
        msgspec.msgpack.encode([1.5, []])[:-1] + b"\x91" + DEEP + b"\xc0",
        msgspec.msgpack.encode([1.5, []])[:-1] + b"\x91\x92\xa1x" + b"\x91" * 5000 + b"\xc0",
        DEEP,
        msgspec.msgpack.encode([float("nan"), []]),
        msgspec.msgpack.encode([float("inf"), []]),
    ],
    ids=["list", "list-in-map", "map", "extension", "deep", "deep-unknown", "deep-batch", "nan", "infinite"],
)
def test_garbage_is_refused(decode: Callable[[bytes], EventBatch], payload: bytes) -> None:
    with pytest.raises(AdapterError, match="KV event payload"):
        decode(payload)
