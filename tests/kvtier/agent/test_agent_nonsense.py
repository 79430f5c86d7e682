"""A peer whose answers make no sense: nothing is believed of them, every stage ends, and no claim or lease stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_rig import config_of, eventually, get, peer_of, put
from chaos_link import Mischief, Send, chaos
from node_rig import Connect, node, thread

from kvtier.page.key import PageKey
from kvtier.page.status import Status
from kvtier.store.answers import Reserved
from kvtier.wire import messages as wire
from kvtier.wire.frames import HEADER_BYTES, pack_frame, unpack_header

Change = Callable[[wire.Acquired], dict[str, Any]]


class Retold(Mischief):
    """Answers to `Acquire` with some fields changed."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def frame(self, data: bytes, send: Send) -> None:
        header = unpack_header(data[:HEADER_BYTES])
        reply = wire.decode_reply(data[HEADER_BYTES : HEADER_BYTES + header.body_bytes])
        if isinstance(reply, wire.Acquired):
            data = pack_frame(header.call, wire.encode(msgspec.structs.replace(reply, **self._change(reply))))
        send(data)


def with_byte(column: bytes, at: int, value: int) -> bytes:
    return column[:at] + bytes([value]) + column[at + 1 :]


CHANGES: dict[str, Change] = {
    "one page less is called leased": lambda said: {"statuses": with_byte(said.statuses, 5, Status.MISS)},
    "a status that there is not": lambda said: {"statuses": with_byte(said.statuses, 5, 200)},
    "a status of puts": lambda said: {
        "statuses": said.statuses[:-1] + bytes([Status.EXISTS]),
        "kinds": said.kinds[:-1],
        "checksums": said.checksums[:-16],
        **{name: wire.Column(list(getattr(said, name))[:-1]) for name in ("offsets", "lengths", "generations", "depths")},
    },
    "more statuses than were asked for": lambda said: {"statuses": said.statuses + bytes([Status.MISS])},
    "a kind that there is not": lambda said: {"kinds": with_byte(said.kinds, 5, 250)},
    "few kinds": lambda said: {"kinds": said.kinds[:5]},
    "few offsets": lambda said: {"offsets": wire.Column(list(said.offsets)[:3])},
    "few lengths": lambda said: {"lengths": wire.Column()},
    "few generations": lambda said: {"generations": wire.Column([1])},
    "few depths": lambda said: {"depths": wire.Column(list(said.depths)[:5])},
    "many depths": lambda said: {"depths": wire.Column([*said.depths, 9])},
    "few checksums": lambda said: {"checksums": said.checksums[:40]},
    "no lease": lambda said: {"lease": 0},
    "a length below nothing": lambda said: {"lengths": wire.Column([*list(said.lengths)[:-1], -8192])},
    "an offset below nothing": lambda said: {"offsets": wire.Column([-4096, *list(said.offsets)[1:]])},
    "an offset behind the pool": lambda said: {"offsets": wire.Column([1 << 40, *list(said.offsets)[1:]])},
    "a depth below nothing": lambda said: {"depths": wire.Column([-1, *list(said.depths)[1:]])},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_an_answer_that_makes_no_sense_gives_nothing(tmp_path: Path, connect: Connect, change: Change) -> None:
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        await thread(put, far.client, range(8))
        async with chaos(peer_of(far.agent), Retold(change)) as peer:
            staged = await near.stage(range(8), peer)
            assert (staged.state, staged.leading, staged.held) == ("partial", 0, 0)
            assert near.agent.fetcher.counters.fetches_failed == 1
            assert len(near.agent.store.catalog) == len(near.agent.store.tiering.writes) == 0
        assert (await near.stage(range(8), peer_of(far.agent))).state == "ready"
        assert await thread(get, near.client, range(8)) == [True] * 8


async def test_a_page_does_not_pass_for_its_neighbour(tmp_path: Path, connect: Connect) -> None:
    """Two statuses change places, and every column fits."""

    def swapped(said: wire.Acquired) -> dict[str, Any]:
        return {"statuses": said.statuses[:2] + said.statuses[3:1:-1] + said.statuses[4:]}

    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        for numbers in (range(3), range(4, 8)):
            await thread(put, far.client, numbers)
        async with chaos(peer_of(far.agent), Retold(swapped)) as peer:
            assert (await near.stage(range(8), peer)).leading == 2
        assert near.agent.fetcher.counters.corrupt_received == 1
        assert await thread(get, near.client, range(8)) == [True, True, False, False, True, True, True, True]
        assert len(near.agent.store.tiering.writes) == 0
        assert (await near.stage(range(8), peer_of(far.agent))).leading == 3


async def test_a_fault_of_our_own_fails_the_stage_and_keeps_nothing(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second page that is claimed meets it, and so does a reading."""
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        await thread(put, far.client, range(8))
        reserve, seen = near.agent.store.reserve, []

        def faulty(keys: list[PageKey], *about: Any, **more: Any) -> Reserved:
            seen.extend(keys)
            if len(seen) == 2:
                raise RuntimeError("a fault")
            return reserve(keys, *about, **more)

        with monkeypatch.context() as patched:
            patched.setattr(near.agent.store, "reserve", faulty)
            assert (await near.stage(range(8), peer_of(far.agent), hold_ms=60_000)).state == "failed"
        assert near.agent.numbers()["stage_crashes"] == 1
        assert (len(near.agent.store.tiering.writes), near.held) == (0, 0)

        async def broken(*_: object) -> list[bytes]:
            return []

        with monkeypatch.context() as patched:
            patched.setattr(near.agent.fetcher._reader, "read", broken)
            assert (await near.stage(range(8), peer_of(far.agent))).state == "partial"
        assert near.agent.numbers()["fetch_crashes"] == 1
        assert len(near.agent.store.tiering.writes) == 0
        await eventually(lambda: not far.agent.store.running_leases, "leases are given back")
        assert (await near.stage(range(8), peer_of(far.agent))).state == "ready"


@pytest.mark.parametrize("host", ["no\0where", "x" * 300])
async def test_a_source_that_is_no_address_is_an_absent_peer(tmp_path: Path, connect: Connect, host: str) -> None:
    async with node(config_of(tmp_path, "near"), connect) as near:
        staged = await near.stage(range(4), wire.Peer("far", host, 1))
        assert (staged.state, near.agent.fetcher.counters.fetches_failed) == ("partial", 1)


class Unanswered(Mischief):
    """`Acquire` is."""

    def frame(self, data: bytes, send: Send) -> None:
        header = unpack_header(data[:HEADER_BYTES])
        if not isinstance(wire.decode_reply(data[HEADER_BYTES : HEADER_BYTES + header.body_bytes]), wire.Acquired):
            send(data)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_fetch_that_the_stage_s_deadline_ends_has_failed(tmp_path: Path, connect: Connect, cancelled: bool) -> None:
    """One that was cancelled has not."""
    async with node(config_of(tmp_path, "far"), connect) as far, node(config_of(tmp_path, "near"), connect) as near:
        await thread(put, far.client, range(4))
        async with chaos(peer_of(far.agent), Unanswered()) as peer:
            begun = await near.begin(range(4), peer, deadline_ms=60_000 if cancelled else 50)
            if cancelled:
                await eventually(lambda: far.agent.store.running_leases > 0, "it was asked")
                await near.ask(wire.CancelStage(begun))
            assert (await near.ended(begun)).state == ("cancelled" if cancelled else "expired")
            assert near.agent.fetcher.counters.fetches_failed == (not cancelled)
