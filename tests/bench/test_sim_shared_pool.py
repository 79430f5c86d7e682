"""The simulated L3: each page once, read at its way's pace, evicted where it lies; and an engine that reads from it."""

from __future__ import annotations

from typing import Any

from bench.simulate.agenda import Agenda
from bench.simulate.engines import L3, EnginePool, Listener
from bench.simulate.pooled_runs import PooledRuns, ssd_of
from bench.simulate.shared_pool import SharedPool, Ssd
from costmodel.values import Link, Residency, Run, Tier, WorkerKey
from engine_adapters.emulator.model.page_cache import PageCache
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.model.request import EngineRequest
from kvtier.index.events import BlocksRemoved, BlocksStored

LOCAL, REMOTE = Link(1.0, 100.0), Link(2.0, 50.0)
A, B = WorkerKey("a"), WorkerKey("b")


def pool(capacity: int = 4, ssd: Ssd | None = None) -> tuple[SharedPool, list[tuple[str, Any]]]:
    told: list[tuple[str, Any]] = []
    return SharedPool(["a", "b"], capacity, 16, 1000.0, lambda node, event: told.append((node, event)), ssd), told


def test_a_page_is_held_once_by_the_node_that_came_first() -> None:
    shared, told = pool()
    shared.write("a", (1, 2), 0.0)
    shared.write("b", (1, 2, 3), 0.0)
    assert told == [("a", BlocksStored((1, 2), None, Tier.L3, 16)), ("b", BlocksStored((3,), None, Tier.L3, 16))]
    assert shared.extent((1, 2, 3, 4)) == 3


def test_the_deepest_pages_go_first_and_only_where_they_lie() -> None:
    shared, told = pool(capacity=3)
    shared.write("a", (1, 2, 3), 0.0)
    shared.write("a", (10, 11), 0.0)
    assert told[-1] == ("a", BlocksRemoved((3, 2), Tier.L3))
    assert shared.extent((1, 2)) == 1
    shared.touch((1,))
    shared.write("a", (20, 21), 0.0)
    assert shared.extent((1,)) == 1, "a look-up keeps a page"


def test_beside_agents_a_page_is_read_where_it_lies() -> None:
    told: list[tuple[str, Any]] = []
    shared = SharedPool(["a", "b"], 4, 16, 1000.0, lambda node, event: told.append((node, event)), own_node=True)
    shared.write("a", (1, 2), 0.0)
    assert (shared.extent((1, 2), "a"), shared.extent((1, 2), "b")) == (2, 0)
    shared.write("b", (1,), 0.0)
    assert told[1:] == [("a", BlocksRemoved((1,), Tier.L3)), ("b", BlocksStored((1,), None, Tier.L3, 16))], "offered there last"
    assert (shared.extent((1, 2), "a"), shared.extent((1, 2), "b")) == (0, 1)
    shared.move("a", "b", (2,), REMOTE, 0.0)
    assert shared.extent((1, 2), "b") == 2, "staged"


def test_reads_take_their_turn_on_each_way() -> None:
    own, _ = pool()
    own.write("a", (1, 2), 0.0)
    assert own.read("a", (1, 2), LOCAL, REMOTE, 0.0) == 20 + 1
    assert own.read("a", (1,), LOCAL, REMOTE, 0.0) == 20 + 10 + 1, "behind the first"
    assert own.read("b", (1, 2), LOCAL, REMOTE, 0.0) == 40 + 2
    assert own.read_bytes == {"l3_local_to_l2": 3000.0, "l3_remote_to_l2": 2000.0}


def test_what_leaves_dram_is_read_from_the_ssd() -> None:
    shared, told = pool(capacity=3, ssd=Ssd(3, Link(5.0, 10.0)))
    shared.write("a", (1, 2, 3), 0.0)
    shared.write("a", (10, 11), 0.0)
    assert told[-1] == ("a", BlocksStored((3, 2), None, Tier.L4, 16)), "demoted, the deepest first"
    assert shared.extent((1, 2, 3)) == 3
    written_ms, read_ms, hop_ms = 2000 / 10, 2000 / 10 + 5, 3000 / 100 + 1
    assert shared.read("a", (1, 2, 3), LOCAL, REMOTE, 0.0) == max(written_ms + read_ms, hop_ms - 1) + 1, "behind the write"
    assert ("a", BlocksStored((2, 3), None, Tier.L3, 16)) in told, "promoted"
    assert told[-1] == ("a", BlocksStored((11, 10), None, Tier.L4, 16)), "and others make room"
    assert (shared.disk_pages_read, shared.read_bytes["l3_to_l4"], shared.read_bytes["l4_to_l3"]) == (2, 4000.0, 2000.0)


def test_the_ssd_drops_what_it_has_no_room_for() -> None:
    shared, told = pool(capacity=1, ssd=Ssd(2, Link(0.0, 1e9)))
    for page in (1, 2, 3, 4):
        shared.write("a", (page,), 0.0)
    assert told[-1] == ("a", BlocksRemoved((1,), Tier.L4))
    assert [shared.extent((page,)) for page in (1, 2, 3, 4)] == [0, 1, 1, 1]
    shared.write("b", (2,), 0.0)
    assert told[-2:] == [("a", BlocksRemoved((2,), Tier.L4)), ("b", BlocksStored((2,), None, Tier.L3, 16))], "held once"
    shared.lose("a")
    assert [shared.extent((page,)) for page in (2, 3, 4)] == [1, 0, 0]


def test_a_lost_node_takes_its_pages_along() -> None:
    shared, told = pool()
    shared.write("a", (1,), 0.0)
    shared.lose("a")
    assert shared.extent((1,)) == 0
    assert told[-1] == ("a", BlocksRemoved((1,), Tier.L3))


def test_another_node_reads_what_one_has_computed() -> None:
    params = EngineParams(kv_tokens=4096, host_kv_tokens=4096, load_back_bytes_per_ms=1e9)
    agenda = Agenda()
    cached: list[tuple[str, Any]] = []
    listener = Listener(
        lambda rid, found: cached.append((rid, found)),
        lambda rid, found: None,
        lambda rid, complete: None,
        lambda key, events: None,
    )
    engines = EnginePool({A: params, B: params}, agenda, listener, L3(1000, 1e6, Link(0.0, 1e6), Link(0.0, 1e5)))
    for rid, key in (("first", A), ("second", B)):
        engines.submit(EngineRequest(rid, 1024, 2, 2, tuple(range(64))), key, key)
        while agenda.step():
            pass
    assert cached[0][1].tokens == 0
    assert (cached[1][1].host, cached[1][1].storage) == (0, 1008), "all but the last page, which is computed"
    assert engines.moved_bytes()["l3_remote_to_l2"] == 63e6


def test_runs_of_the_pool_continue_a_workers_own() -> None:
    runs = PooledRuns(range(8), {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 6: "a"}, 10)
    own = Residency((Run(0, 20, Tier.L1),), 5.0)
    assert runs.behind(own, 75).runs == (Run(0, 20, Tier.L1), Run(20, 10, Tier.L3, "a"), Run(30, 20, Tier.L3, "b"))
    assert runs.behind(Residency(), 45).runs == (Run(0, 30, Tier.L3, "a"), Run(30, 15, Tier.L3, "b"))


def test_runs_of_other_nodes_count_where_they_can_be_staged() -> None:
    holder, disk_of = {0: "a", 1: "b"}, {2: "a"}
    alone = PooledRuns(range(3), holder, 10, disk_of, own_node=True)
    assert alone.behind(Residency(), 30, "a").runs == (Run(0, 10, Tier.L3, "a"),)
    assert alone.behind(Residency(), 30, "b") == Residency()
    assert alone.behind(Residency((Run(0, 20, Tier.L1),)), 30, "a").runs[1:] == (Run(20, 10, Tier.L4, ssd_of("a")),)
    assert len(PooledRuns(range(3), holder, 10, disk_of).behind(Residency(), 30, "b").runs) == 3


def test_runs_on_an_ssd_have_a_source_of_their_own() -> None:
    runs = PooledRuns(range(6), {0: "a", 1: "a"}, 10, {2: "a", 3: "a", 4: "b"})
    expected = (Run(0, 20, Tier.L3, "a"), Run(20, 20, Tier.L4, ssd_of("a")), Run(40, 10, Tier.L4, ssd_of("b")))
    assert runs.behind(Residency(), 60).runs == expected


def test_the_host_tier_takes_what_fits_behind_what_it_holds() -> None:
    cache = PageCache(device_capacity=4, host_capacity=3, page_tokens=16)
    assert cache.insert_host((1, 2)) == 2
    assert cache.match((1, 2, 3)).host_pages == 2
    assert cache.insert_host((1, 2, 3, 4, 5)) == 1, "its own prefix is not evicted for it"
    assert cache.insert_host((1, 2)) == 0, "it is there already"
    assert cache.insert_host((7, 8)) == 2, "older leaves make room"
    assert cache.host_pages <= 3


def test_a_copying_kernel_takes_compute_from_prefill() -> None:
    def first_token_ms(share: float) -> float:
        params = EngineParams(kv_tokens=2048, host_kv_tokens=8192, load_back_bytes_per_ms=1e7, load_back_compute_share=share)
        agenda = Agenda()
        times: dict[str, float] = {}
        listener = Listener(
            lambda rid, found: None,
            lambda rid, found: times.setdefault(rid, agenda.now_ms),
            lambda rid, complete: None,
            lambda key, events: None,
        )
        engines = EnginePool({A: params}, agenda, listener)
        for rid, pages in (("one", range(64)), ("other", range(100, 200)), ("one again", range(64))):
            begun = agenda.now_ms
            engines.submit(EngineRequest(rid, 16 * len(pages), 2, 2, tuple(pages)), A, A)
            while agenda.step():
                pass
        return times["one again"] - begun

    assert first_token_ms(0.0) < first_token_ms(0.9)
