"""The msgpack of KV events as SGLang and vLLM publish it: batches and events as arrays or maps, with or without a tier.

Pure. Token ids are skipped, not decoded: the blocks' hashes are what an index needs. How an engine names its tiers and how it
shortens a bytes hash are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from costmodel.values import Tier
from engine_adapters.base import AdapterError, EventBatch
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored

_U64 = 1 << 64
_I64_MAX = (1 << 63) - 1

WireHash = int | bytes


class _StoredMap(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[WireHash]
    block_size: int
    parent_block_hash: WireHash | None = None
    medium: str | None = None
    kv_cache_spec_kind: str | None = None  # vLLM: which cache group of a hybrid model


class _RemovedMap(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[WireHash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedMap(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _StoredArray(msgspec.Struct, array_like=True, tag="BlockStored"):
    block_hashes: list[WireHash]
    parent_block_hash: WireHash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[WireHash]
    medium: str | None = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class _BatchArray(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class _BatchMap(msgspec.Struct):
    events: list[msgspec.Raw]
    ts: float = 0.0
    data_parallel_rank: int | None = None
    attn_dp_rank: int | None = None


_WireEvent = _StoredMap | _RemovedMap | _ClearedMap | _StoredArray | _RemovedArray | _ClearedArray

_BATCH_ARRAY = msgspec.msgpack.Decoder(_BatchArray)
_BATCH_MAP = msgspec.msgpack.Decoder(_BatchMap)
_EVENT_ARRAY = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_EVENT_MAP = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_ANY = msgspec.msgpack.Decoder()
_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


class EventWire:
    """One engine's reading of the shared wire.

    `tiers` maps its media to tiers; an event in a medium that is not listed is left out, for its tier is unknown.
    `shorten` makes a signed 64-bit id of a bytes hash. `indexed_kinds`, if given, names the cache groups of hybrid models whose
    blocks count; the others hold only a window and say nothing about a prefix.
    """

    def __init__(
        self,
        tiers: Mapping[str | None, Tier],
        shorten: Callable[[bytes], int],
        indexed_kinds: frozenset[str] | None = None,
    ) -> None:
        self._tiers = tiers
        self._shorten = shorten
        self._indexed_kinds = indexed_kinds

    def decode(self, payload: bytes) -> EventBatch:
        """One PUB payload. Raises `AdapterError` when it is not a batch; unknown kinds of event are left out."""
        try:
            batch = self._batch(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise AdapterError(f"a KV event payload of {len(payload)} bytes cannot be read: {error}") from error
        if not math.isfinite(batch.timestamp_s):
            raise AdapterError(f"a KV event payload of {len(payload)} bytes has no time: {batch.timestamp_s}")
        return batch

    def _batch(self, payload: bytes) -> EventBatch:
        if _is_map(payload):
            as_map = _BATCH_MAP.decode(payload)
            rank = as_map.data_parallel_rank if as_map.data_parallel_rank is not None else as_map.attn_dp_rank
            return EventBatch(timestamp_s=as_map.ts, events=self._events(as_map.events), dp_rank=rank)
        batch = _BATCH_ARRAY.decode(payload)
        return EventBatch(timestamp_s=batch.ts, events=self._events(batch.events), dp_rank=batch.dp_rank)

    def _events(self, raws: list[msgspec.Raw]) -> tuple[BlockEvent, ...]:
        read = (self._event(wire) for raw in raws if (wire := _wire_event(bytes(raw))) is not None)
        return tuple(event for event in read if event is not None)

    def _event(self, wire: _WireEvent) -> BlockEvent | None:
        if isinstance(wire, _StoredMap | _StoredArray):
            return self._stored(wire)
        if isinstance(wire, _RemovedMap | _RemovedArray):
            return self._removed(wire)
        return AllCleared()

    def _stored(self, wire: _StoredMap | _StoredArray) -> BlocksStored | None:
        tier = self._tiers.get(wire.medium)
        if tier is None or self._is_window(wire):
            return None
        parent = None if wire.parent_block_hash is None else self._id(wire.parent_block_hash)
        return BlocksStored(hashes=self._ids(wire.block_hashes), parent=parent, tier=tier, block_tokens=wire.block_size)

    def _is_window(self, wire: _StoredMap | _StoredArray) -> bool:
        kind = wire.kv_cache_spec_kind if isinstance(wire, _StoredMap) else None
        return self._indexed_kinds is not None and kind is not None and kind not in self._indexed_kinds

    def _removed(self, wire: _RemovedMap | _RemovedArray) -> BlocksRemoved | None:
        if wire.medium is None:  # older engines do not say from where: nothing of the source may be relied on
            return BlocksRemoved(hashes=self._ids(wire.block_hashes), tier=None)
        tier = self._tiers.get(wire.medium)
        return None if tier is None else BlocksRemoved(hashes=self._ids(wire.block_hashes), tier=tier)

    def _ids(self, hashes: list[WireHash]) -> tuple[int, ...]:
        return tuple([self._id(value) for value in hashes])

    def _id(self, value: WireHash) -> int:
        return self._shorten(value) if isinstance(value, bytes) else signed(value)


def signed(value: int) -> int:
    """An unsigned 64-bit id as the signed one with the same bits; a signed one as it is."""
    return value - _U64 if value > _I64_MAX else value


def _wire_event(raw: bytes) -> _WireEvent | None:
    try:
        event: _WireEvent = _EVENT_MAP.decode(raw) if _is_map(raw) else _EVENT_ARRAY.decode(raw)
    except msgspec.ValidationError:
        if _tag(raw) in _KNOWN:
            raise
        return None
    return event


def _tag(raw: bytes) -> str:
    """Which kind an event says it is. Raises `msgspec.ValidationError` where that is no name."""
    event = _ANY.decode(raw)
    tag = event.get("type") if isinstance(event, dict) else event[0] if isinstance(event, list) and event else None
    if not isinstance(tag, str):
        raise msgspec.ValidationError("an event has no kind")
    return tag


def _is_map(raw: bytes) -> bool:
    first = raw[0] if raw else 0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)
