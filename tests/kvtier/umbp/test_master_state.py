"""What must come back after silence, lost answers and the master's own death: where UMBP's own master forgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from costmodel.values import Tier, WorkerKey
from kvtier.index.memory import BlockIndex
from kvtier.umbp.clients import AlreadyRegistered, Beat, Capacity, Client, Status
from kvtier.umbp.keys import block_id
from kvtier.umbp.master import UmbpMaster
from kvtier.umbp.master_state import DRAM, HBM, SSD, Event, MasterState, Placed, Saved

CAPACITY = (Capacity(DRAM, 100, 60),)


def fresh() -> MasterState:
    return MasterState(BlockIndex(max_entries=4096, max_sources=16), Random(1), expire_ms=30_000)


@pytest.fixture
def state() -> MasterState:
    state = fresh()
    state.register(Client("n1", "a:1", "a:2", capacities=CAPACITY), 0.0)
    beat(state, [(1, [add("k1"), add("k2", SSD)])], 1.0)
    state.report("n1", ["11", "12"], HBM, 1.0)
    return state


def add(key: str, tier: int = DRAM, size: int = 10) -> Event:
    return Event(True, key, tier, size)


def beat(
    state: MasterState,
    bundles: Sequence[tuple[int, Sequence[Event]]] = (),
    now_ms: float = 2.0,
    *,
    full: bool = False,
    baseline: int = 0,
) -> Beat:
    return state.heartbeat("n1", bundles, (), full=full, baseline=baseline, now_ms=now_ms)


def test_a_client_that_was_expired_sends_everything_again_before_its_pages_are_believed(state: MasterState) -> None:
    state.expire(30_001.0)
    assert (state.exists("k1"), state.match(["11"], count=False)) == (False, {})
    assert beat(state, [], 31_000.0) == Beat(Status.ALIVE, 1, request_full_sync=True, revived=True), "a keepalive alone"
    assert not state.exists("k1")
    assert state.match(["11"], count=False) == {"n1": {HBM: ["11"]}}, "engine blocks have no full sync, they are believed again"
    assert beat(state, [(2, [add("k3")])], 32_000.0).request_full_sync, "a number that fits is not enough"
    assert beat(state, [(2, [add("k1"), add("k3")])], 33_000.0, full=True, baseline=2).acked_seq == 2
    assert [state.exists(key) for key in ("k1", "k2", "k3")] == [True, False, True]
    assert beat(state, [(3, [add("k4")])], 34_000.0) == Beat(Status.ALIVE, 3)


def test_a_lost_answer_costs_no_full_sync(state: MasterState) -> None:
    both = [(2, [add("k3")]), (3, [Event(False, "k1", DRAM, 0)])]
    assert beat(state, both[:1]) == Beat(Status.ALIVE, 2)
    assert beat(state, both) == Beat(Status.ALIVE, 3, first=1)
    assert [state.exists(key) for key in ("k1", "k3")] == [False, True]


def test_a_gap_asks_for_everything_and_applies_nothing(state: MasterState) -> None:
    assert beat(state, [(3, [add("k9")])]) == Beat(Status.ALIVE, 1, request_full_sync=True, first=1)
    assert not state.exists("k9")
    assert not state.exists("k1"), "what may be stale is not believed"
    assert state.match(["k1"], count=False) == {}
    beat(state, [(3, [add("k9")])], full=True, baseline=3)
    assert [state.exists(key) for key in ("k1", "k9")] == [False, True]


def test_an_unknown_client_is_told_so(state: MasterState) -> None:
    assert state.heartbeat("n9", [], (), full=False, baseline=0, now_ms=0.0).status is Status.UNKNOWN
    assert not state.report("n9", ["1"], HBM, 0.0)
    assert state.ignored_reports == 1


def test_a_keepalive_brings_capacities(state: MasterState) -> None:
    state.heartbeat("n1", [], (Capacity(DRAM, 100, 5),), full=False, baseline=0, now_ms=2.0)
    assert state.place(["new"], [6], ()) == [Placed(exists=False)]


def test_after_the_masters_restart_addresses_pages_and_engine_blocks_recover(state: MasterState) -> None:
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.save()), type=Saved)
    again = fresh()
    again.restore(saved, 50_000.0)
    assert (again.exists("k1"), again.match(["11"], count=False)) == (False, {}), "nobody is believed before it was heard of"
    assert beat(again, [], 50_001.0).request_full_sync
    assert again.match(["11"], count=False) == {"n1": {HBM: ["11"]}}
    assert again.clients.address("n1") == "a:2"
    beat(again, [(1, [add("k1")])], 50_002.0, full=True, baseline=1)
    assert again.exists("k1")


def test_the_re_registration_of_a_umbp_client_leaves_its_address_as_it_was(state: MasterState) -> None:
    state.register(Client("n1", "a:1", capacities=CAPACITY), 10.0)
    assert state.clients.address("n1") == "a:2"
    assert not state.exists("k1"), "a new life begins with nothing"
    assert beat(state, [(1, [add("k5")])]) == Beat(Status.ALIVE, 1)
    with pytest.raises(AlreadyRegistered):
        state.register(Client("n1", "b:1", "b:2"), 11.0)
    state.expire(60_000.0)
    state.register(Client("n1", "b:1", "b:2"), 60_001.0)
    assert state.clients.address("n1") == "b:2"


def test_pool_keys_of_one_block_are_one_block_until_the_last_has_gone(state: MasterState) -> None:
    digest = "ab" * 32
    beat(state, [(2, [add(f"{digest}_k"), add(f"{digest}_v")])])
    assert state.match([digest], count=False) == {"n1": {DRAM: [digest]}}
    beat(state, [(3, [Event(False, f"{digest}_k", DRAM, 0)])])
    assert state.match([digest], count=False) == {"n1": {DRAM: [digest]}}
    beat(state, [(4, [Event(False, f"{digest}_v", DRAM, 0)])])
    assert state.match([digest], count=False) == {}


def test_a_page_that_moves_tiers_is_in_the_new_one_alone(state: MasterState) -> None:
    digest = "cd" * 32
    beat(state, [(2, [add(digest)])])
    beat(state, [(3, [add(digest, SSD), Event(False, digest, DRAM, 0)])])
    assert state.match([digest], count=False) == {"n1": {SSD: [digest]}}


def test_a_hash_reported_twice_is_revoked_once(state: MasterState) -> None:
    state.report("n1", ["11", "11"], HBM, 1.0)
    state.revoke("n1", ["11"], HBM, 1.0)
    assert state.match(["11", "12"], count=False) == {"n1": {HBM: ["12"]}}


def test_reads_prefer_dram_and_the_reader_itself(state: MasterState) -> None:
    for node in ("n2", "n3"):
        state.register(Client(node, peer_address=f"{node}:1"), 0.0)
        state.heartbeat(node, [(1, [add("k2")])], (), full=False, baseline=0, now_ms=1.0)
    found = state.find("k2", "n3", ())
    assert found is not None
    assert (found[0], found[1].tier) == ("n3", DRAM)
    far = state.find("k2", "n1", ())
    assert far is not None
    assert far[0] in ("n2", "n3"), "DRAM elsewhere before its own SSD"
    last = state.find("k2", "n3", ("n2", "n3"))
    assert last is not None
    assert last[1].tier == SSD


@pytest.mark.parametrize(
    ("key", "expected"),
    [("-5", -5), (str(2**64 - 5), -5), ("7", 7), ("ff" * 32, -1), ("00" * 7 + "01" + "ab" * 24 + "_3_k", 1)],
)
def test_keys_are_the_engines_own_ids(key: str, expected: int) -> None:
    assert block_id(key) == expected


def test_other_keys_are_told_apart() -> None:
    assert block_id("a") != block_id("b")


async def test_the_master_keeps_its_picture_in_a_file(state: MasterState, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    master = UmbpMaster(state, lambda: 1.0, path)
    await master.start("127.0.0.1", 0)
    await master.close()
    again = UmbpMaster(fresh(), lambda: 1.0, path)
    await again.start("127.0.0.1", 0)
    assert again.state.clients.address("n1") == "a:2"
    assert again.state.index.holds(WorkerKey("n1"), 11, Tier.L1)
    await again.close()


@pytest.mark.parametrize("found", [b"garbage", b"\x94\x90\x80\x80" + b"\x91" * 50_000 + b"\0"])
async def test_a_file_that_is_no_picture_begins_with_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, found: bytes
) -> None:
    path = tmp_path / "picture"
    path.write_bytes(found)
    master = UmbpMaster(fresh(), lambda: 1.0, path)
    await master.start("127.0.0.1", 0)
    await master.close()
    assert "beginning with nothing" in caplog.text


async def test_a_picture_that_cannot_be_saved_is_told_and_ends_nothing(
    state: MasterState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = UmbpMaster(state, lambda: 1.0, tmp_path / "no such folder" / "picture")
    await master.start("127.0.0.1", 0)
    await master.close()
    assert "not saved" in caplog.text
