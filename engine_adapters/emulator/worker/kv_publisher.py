"""KV events on the wire: a ZMQ PUB socket and a ROUTER that replays, as SGLang 0.5.23 serves them.

Frames are [topic, seq (8 bytes, big-endian), msgpack [timestamp, [events], dp_rank]]; events are maps with a `type` member
(wire: srt/disaggregation/kv_events.py, mem_cache/events.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from costmodel.values import Tier
from engine_adapters.emulator.model.page_events import PageEvent, PagesCleared, PagesRemoved, PagesStored

_MEDIUM = {Tier.L1: "GPU", Tier.L2: "CPU_PINNED"}
_END_SEQ = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """One rank's publisher. Without a port it swallows everything. `start` and `stop` bracket the replay service."""

    def __init__(self, port: int | None, replay_port: int | None, page_tokens: int, topic: str, buffer_steps: int) -> None:
        self._page_tokens = page_tokens
        self._topic = topic.encode()
        self._ports = (port, replay_port)
        self._seq = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._context: zmq.asyncio.Context | None = None
        self._publisher: zmq.Socket[bytes] | None = None
        self._replay: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        return self._ports[0] is not None

    async def start(self) -> None:
        """Bind; raises zmq.ZMQError when a port is taken."""
        port, replay_port = self._ports
        if port is None:
            return
        self._context = zmq.asyncio.Context()
        self._publisher = zmq.Context(self._context).socket(zmq.PUB)
        self._publisher.set_hwm(100_000)
        self._publisher.bind(f"tcp://*:{port}")
        if replay_port is not None:
            router = self._context.socket(zmq.ROUTER)
            router.bind(f"tcp://*:{replay_port}")
            self._replay = asyncio.create_task(self._serve_replay(router), name="kv-replay")

    async def stop(self) -> None:
        if self._replay is not None:
            self._replay.cancel()
            await asyncio.gather(self._replay, return_exceptions=True)
        if self._publisher is not None:
            self._publisher.close(linger=0)
        if self._context is not None:
            self._context.destroy(linger=0)

    def publish(self, events: Sequence[PageEvent]) -> None:
        """One batch, one sequence number."""
        if self._publisher is None:
            return
        payload = msgspec.msgpack.encode([time.time(), encode_events(events, self._page_tokens), 0])
        self._publisher.send_multipart((self._topic, self._seq.to_bytes(8, "big"), payload))
        self._buffer.append((self._seq, payload))
        self._seq += 1

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        with router:
            while True:
                frames = await router.recv_multipart()
                if len(frames) != 3:
                    continue
                client, _, start = frames
                first = int.from_bytes(start, "big")
                for seq, payload in [entry for entry in self._buffer if entry[0] >= first]:
                    await router.send_multipart([client, b"", self._topic, seq.to_bytes(8, "big"), payload])
                await router.send_multipart([client, b"", b"", _END_SEQ, b""])


def encode_events(events: Sequence[PageEvent], page_tokens: int) -> list[dict[str, Any]]:
    """Event maps in SGLang's member order, neighbours merged as its recorder merges them."""
    maps: list[dict[str, Any]] = []
    for event in events:
        shaped = _encode(event, page_tokens)
        if not (maps and _merge(maps[-1], shaped)):
            maps.append(shaped)
    return maps


def _encode(event: PageEvent, page_tokens: int) -> dict[str, Any]:
    if isinstance(event, PagesCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, PagesRemoved):
        return {"type": "BlockRemoved", "block_hashes": list(event.hashes), "medium": _MEDIUM[event.tier]}
    stored = {
        "type": "BlockStored",
        "block_hashes": list(event.hashes),
        "parent_block_hash": event.parent,
        "token_ids": _tokens(event, page_tokens),
        "block_size": page_tokens,
        "lora_id": None,
        "medium": _MEDIUM[event.tier],
    }
    return stored if event.cache_salt is None else {**stored, "cache_salt": event.cache_salt}


def _tokens(event: PagesStored, page_tokens: int) -> list[int]:
    if event.tokens is None:
        return []
    start = event.first_page * page_tokens
    return list(event.tokens[start : start + len(event.hashes) * page_tokens])


def _merge(tail: dict[str, Any], event: dict[str, Any]) -> bool:
    if tail["type"] != event["type"] or tail.get("medium") != event.get("medium"):
        return False
    if event["type"] == "BlockRemoved":
        tail["block_hashes"] += event["block_hashes"]
        return True
    linked = event["type"] == "BlockStored" and event["parent_block_hash"] == tail["block_hashes"][-1]
    if linked and event.get("cache_salt") == tail.get("cache_salt"):
        tail["block_hashes"] += event["block_hashes"]
        tail["token_ids"] += event["token_ids"]
        return True
    return False
