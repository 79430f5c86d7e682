"""The planner's moves in virtual time: what they bring where, and that nothing is planned from what is yet to come."""

from __future__ import annotations

from typing import Any

from bench.simulate.agenda import Agenda
from bench.simulate.engines import L3, EnginePool, Listener
from bench.simulate.prefetching import Prefetching, Subject
from bench.simulate.view import View
from costmodel.hardware import HardwarePrior
from costmodel.params import PolicyParams
from costmodel.policies import CostPolicy
from costmodel.values import Link, Role, Tier, WorkerKey
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.model.request import EngineRequest
from kvtier.prefetch.params import PrefetchParams

A, B = WorkerKey("a"), WorkerKey("b")
PAGES = tuple(range(64))


def stage() -> tuple[Agenda, View, EnginePool]:
    agenda = Agenda()
    view = View({A: Role.UNIFIED, B: Role.UNIFIED}, HardwarePrior(), page_tokens=16, l2=True, l3=True)
    listener = Listener(
        lambda rid, cached: None,
        lambda rid, cached: None,
        lambda rid, complete: None,
        lambda key, events: view.heard_events(key, events, agenda.now_ms),
        view.heard_pool,
    )
    params = EngineParams(kv_tokens=4096, host_kv_tokens=4096)
    return agenda, view, EnginePool({A: params, B: params}, agenda, listener, L3(1000, 1e6, Link(0.0, 1e6), Link(0.0, 1e5)))


def run(agenda: Agenda) -> None:
    while agenda.step():
        pass


def test_a_warm_request_brings_another_nodes_pages_to_the_device() -> None:
    agenda, _, engines = stage()
    engines.submit(EngineRequest("first", 1024, 2, 2, PAGES), A, A)
    run(agenda)
    done: list[Any] = []
    engines.warm(B, PAGES[:32], lambda: done.append(agenda.now_ms))
    run(agenda)
    assert len(done) == 1
    assert engines.models[B].cache.match(PAGES).device_pages == 32
    assert engines.moved_bytes()["l3_remote_to_l2"] == 32e6


def test_a_staged_page_lies_where_it_was_brought() -> None:
    agenda, _, engines = stage()
    engines.submit(EngineRequest("first", 1024, 2, 2, PAGES), A, A)
    run(agenda)
    assert engines.free_pages("b") == 1000
    engines.stage("a", "b", PAGES[:10], 1e6)
    assert engines.free_pages("b") == 990
    assert engines.stage("a", "b", PAGES[:10], 1e6) == agenda.now_ms, "they lie there already"


def test_the_planner_sees_the_last_prompt_as_the_worker_would_find_it() -> None:
    agenda, view, engines = stage()
    prefetching = Prefetching(agenda, view, engines, CostPolicy(PolicyParams()), PrefetchParams())
    assert prefetching.target("t", None) is None, "a thread that was never asked for"
    engines.submit(EngineRequest("first", 1024, 2, 2, PAGES), A, A)
    run(agenda)
    prefetching.sent("t", Subject(PAGES, 1024, 100, A, A))
    here, there = prefetching.target("t", A), prefetching.target("t", B)
    assert here is not None
    assert there is not None
    assert {extent.engine for extent in here.extents} == {Tier.L1}
    assert [place.node for extent in there.extents for place in extent.places] == ["a"]
    assert here.prompt_tokens > 1024
