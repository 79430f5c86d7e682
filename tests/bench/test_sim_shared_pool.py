"""The simulated L3: each page once, read at its way's pace, evicted where it lies; and an engine that reads from it."""

from __future__ import annotations

from typing import Any

from bench.simulate.agenda import Agenda
from bench.simulate.engines import L3, EnginePool, Listener
from bench.simulate.pooled_runs import PooledRuns
from bench.simulate.shared_pool import SharedPool
from costmodel.values import Link, Residency, Run, Tier, WorkerKey
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.model.request import EngineRequest
from kvtier.index.events import BlocksRemoved, BlocksStored

LOCAL, REMOTE = Link(1.0, 100.0), Link(2.0, 50.0)
A, B = WorkerKey("a"), WorkerKey("b")


def pool(capacity: int = 4) -> tuple[SharedPool, list[tuple[str, Any]]]:
    told: list[tuple[str, Any]] = []
    return SharedPool(["a", "b"], capacity, 16, 1000.0, lambda node, event: told.append((node, event))), told


def test_a_page_is_held_once_by_the_node_that_came_first() -> None:
    shared, told = pool()
    shared.write("a", (1, 2))
    shared.write("b", (1, 2, 3))
    assert told == [("a", BlocksStored((1, 2), None, Tier.L3, 16)), ("b", BlocksStored((3,), None, Tier.L3, 16))]
    assert shared.extent((1, 2, 3, 4)) == 3


def test_the_deepest_pages_go_first_and_only_where_they_lie() -> None:
    shared, told = pool(capacity=3)
    shared.write("a", (1, 2, 3))
    shared.write("a", (10, 11))
    assert told[-1] == ("a", BlocksRemoved((3, 2), Tier.L3))
    assert shared.extent((1, 2)) == 1
    shared.touch((1,))
    shared.write("a", (20, 21))
    assert shared.extent((1,)) == 1, "a look-up keeps a page"


def test_reads_take_their_turn_on_each_way() -> None:
    own, _ = pool()
    own.write("a", (1, 2))
    assert own.read("a", (1, 2), LOCAL, REMOTE, 0.0) == 20 + 1
    assert own.read("a", (1,), LOCAL, REMOTE, 0.0) == 20 + 10 + 1, "behind the first"
    assert own.read("b", (1, 2), LOCAL, REMOTE, 0.0) == 40 + 2
    assert own.read_bytes == {"l3_local_to_l2": 3000.0, "l3_remote_to_l2": 2000.0}


def test_a_lost_node_takes_its_pages_along() -> None:
    shared, told = pool()
    shared.write("a", (1,))
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
