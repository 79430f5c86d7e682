"""A node that offers pages believes no answer that makes no sense: its rounds end, and it hands nothing over."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from agent_rig import config_of, get, peer_of, put
from chaos_link import Mischief, Send, chaos
from node_rig import Connect, node, thread

from engine_adapters.launch.ports import free_ports
from kvtier.wire import messages as wire
from kvtier.wire.frames import HEADER_BYTES, pack_frame, unpack_header


class Retold(Mischief):
    """Answers of one kind are others."""

    def __init__(self, kind: type, change: Callable[[Any], wire.Message]) -> None:
        self._kind = kind
        self._change = change

    def frame(self, data: bytes, send: Send) -> None:
        header = unpack_header(data[:HEADER_BYTES])
        reply = wire.decode_reply(data[HEADER_BYTES : HEADER_BYTES + header.body_bytes])
        send(pack_frame(header.call, wire.encode(self._change(reply))) if isinstance(reply, self._kind) else data)


def staging(state: str, leading: int) -> Callable[[wire.Staging], wire.Message]:
    return lambda said: wire.Staging(said.stage, state, said.pages, leading, said.fetched_bytes)


def stats(**numbers: float) -> Callable[[wire.Stats], wire.Message]:
    return lambda _: wire.Stats(numbers)


ANSWERS = {
    "the truth": Mischief(),
    "fewer than none": Retold(wire.Staging, staging("partial", -1)),
    "more than were offered": Retold(wire.Staging, staging("ready", 1 << 40)),
    "never done": Retold(wire.Staging, staging("fetching", 0)),
    "no stage": Retold(wire.Staging, lambda _: wire.Done()),
    "no room told": Retold(wire.Stats, stats()),
    "no number": Retold(wire.Stats, stats(dram_bytes=nan, dram_used_bytes=0.0)),
    "endless room": Retold(wire.Stats, stats(dram_bytes=inf, dram_used_bytes=0.0)),
    "more used than there is": Retold(wire.Stats, stats(dram_bytes=1e9, dram_used_bytes=2e9)),
    "no stats": Retold(wire.Stats, lambda _: wire.Done()),
}


@pytest.mark.parametrize("mischief", ANSWERS.values(), ids=ANSWERS)
async def test_nothing_is_handed_over_on_an_answer_that_makes_no_sense(
    tmp_path: Path, connect: Connect, mischief: Mischief
) -> None:
    async with node(config_of(tmp_path, "far"), connect) as far, chaos(peer_of(far.agent), mischief) as peer:
        honest, (here,) = type(mischief) is Mischief, free_ports(1)
        near = config_of(
            tmp_path, "near", pool_mib=2, watermark=0.8, listen={"port": here},
            peers=[{"node": "far", "host": peer.host, "port": peer.port}],
            share={
                "placement": {"policy": "most_free"}, "max_moved_share": 0.2,
                "every_ms": 100_000, "deadline_ms": 5000 if honest else 100,
            },
        )  # fmt: skip
        async with node(near, connect) as giver:
            await thread(put, giver.client, range(50))
            assert giver.agent.sharer is not None
            await giver.agent.sharer.round()
            assert (giver.agent.numbers()["placed_pages"] > 0) == honest
            assert all(await thread(get, giver.client, range(50))) != honest
