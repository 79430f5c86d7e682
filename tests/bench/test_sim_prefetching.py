"""The planner's moves in virtual time: what they bring where, and that nothing is planned from what is yet to come."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from bench.simulate.agenda import Agenda
from bench.simulate.engines import L3, EnginePool, Listener
from bench.simulate.experiments import Choice, exp1_experiments, fork_experiment
from bench.simulate.prefetch_arms import pooled, prefetch_arms, prefetch_table, triggers_of
from bench.simulate.prefetching import Prefetching, Subject
from bench.simulate.view import View
from costmodel.hardware import HardwarePrior
from costmodel.params import PolicyParams
from costmodel.policies import CostPolicy
from costmodel.values import Link, Role, Tier, WorkerKey
from engine_adapters.base import LoadReport
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.emulator.model.request import Cached, EngineRequest
from kvtier.index.events import BlockEvent
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.params import PrefetchParams

A, B = WorkerKey("a"), WorkerKey("b")
PAGES = tuple(range(64))


def stage(*, own_node: bool = False) -> tuple[Agenda, View, EnginePool]:
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
    l3 = L3(1000, 1e6, Link(0.0, 1e6), Link(0.0, 1e5), own_node=own_node)
    return agenda, view, EnginePool({A: params, B: params}, agenda, listener, l3)


def run(agenda: Agenda) -> None:
    while agenda.step():
        pass


def never() -> None:
    pytest.fail("it was taken back, or its worker is gone")


def computed_on_a(*, own_node: bool = False) -> tuple[Agenda, View, EnginePool]:
    agenda, view, engines = stage(own_node=own_node)
    engines.submit(EngineRequest("first", 1024, 2, 2, PAGES), A, A)
    run(agenda)
    return agenda, view, engines


def test_a_warm_request_brings_another_nodes_pages_to_the_device() -> None:
    agenda, _, engines = computed_on_a()
    done: list[Any] = []
    engines.warm(B, PAGES[:32], lambda: done.append(agenda.now_ms))
    run(agenda)
    assert len(done) == 1
    assert engines.models[B].cache.match(PAGES).device_pages == 32
    assert engines.moved_bytes()["l3_remote_to_l2"] == 32e6


def test_a_staged_page_lies_where_it_was_brought() -> None:
    agenda, _, engines = computed_on_a()
    assert engines.free_pages("b") == 1000
    engines.stage("a", "b", PAGES[:10], 1e6)
    assert engines.free_pages("b") == 990
    assert engines.stage("a", "b", PAGES[:10], 1e6) == agenda.now_ms, "they lie there already"


def test_the_planner_sees_the_last_prompt_as_the_worker_would_find_it() -> None:
    agenda, view, engines = stage()
    prefetching = Prefetching(agenda, view, engines, CostPolicy(PolicyParams()), PrefetchParams(), lambda worker: None)
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
    assert (there.worker, there.margin_ms) == (B, float("inf")), "asked for one worker, there is no other"
    assert there.restore[Tier.L3] == view.pool_link("b", "b"), "what is staged is read from its own node"
    chosen = prefetching.target("t", None)
    assert chosen is not None
    assert abs(chosen.margin_ms) < float("inf")


def test_a_warm_request_that_is_taken_back_computes_nothing() -> None:
    agenda, _, engines = computed_on_a()
    rid = engines.warm(B, PAGES[:32], never)
    engines.unwarm(B, rid)
    engines.unwarm(B, rid)
    run(agenda)
    match = engines.models[B].cache.match(PAGES)
    assert (match.device_pages, match.host_pages) == (0, 32), "what was being read has come"
    assert engines.models[B].idle


def test_what_an_engine_reports_of_warm_requests_is_no_load_of_its() -> None:
    _, view, _ = computed_on_a()

    def waiting() -> int:
        view.heard_load(B, LoadReport(0, 0, 1, waiting_uncached_tokens=500), 0.0)
        fleet = view.fleet(PAGES, 1024, {}, 0.0, new_thread=False)
        return next(each.load.waiting_requests for each in fleet.prefills if each.worker == B)

    view.warming(B, 1)
    assert waiting() == 0
    view.warming(B, -1)
    assert waiting() == 1
    view.lost(B)
    view.warming(B, 1)


def test_a_warm_request_is_gone_with_its_worker() -> None:
    agenda, _, engines = computed_on_a()
    rid = engines.warm(B, PAGES[:32], never)
    assert engines.lose(B) == [], "no turn of a client's"
    engines.unwarm(B, rid)
    run(agenda)


@pytest.mark.parametrize("lost", [A, B])
def test_what_was_on_its_way_ends_with_the_node_at_either_end(lost: WorkerKey) -> None:
    """A turn that waits for its pages, on their way from a to b."""
    agenda, view, engines = computed_on_a(own_node=True)
    released: list[WorkerKey] = []
    prefetching = Prefetching(agenda, view, engines, CostPolicy(PolicyParams()), PrefetchParams(), released.append)
    prefetching.sent("t", Subject(PAGES, 1024, 100, A, A))
    prefetching.held("t", B, full=False)
    assert prefetching.fetches("t", B)
    engines.lose(lost)
    view.lost(lost)
    prefetching.lost(lost)
    run(agenda)
    assert not prefetching.fetches("t", B)
    assert released == [B]
    assert prefetching.tallies()["decision"]["jobs"] == {"failed": 1}
    left = prefetching.target("t", B if lost == A else A)
    assert left is not None
    assert all(place.node != lost.worker_id for extent in left.extents for place in extent.places), "it is forgotten at once"


def computed_by_a_crowd(triggers: frozenset[Trigger]) -> int:
    """Eight turns come to one slow engine at once; L3 has what they had before, L2 has room for three of them. Tokens that were
    computed of what L3 had."""
    agenda = Agenda()
    view = View({A: Role.UNIFIED}, HardwarePrior(), page_tokens=16, l2=True, l3=True)
    cached: dict[str, int] = {}
    planners: list[Prefetching] = []

    def prefilled(rid: str, found: Cached) -> None:
        cached[rid] = found.tokens
        if not rid.endswith("before"):
            planners[0].served(rid, A, found.tokens)

    def published(key: WorkerKey, events: list[BlockEvent]) -> None:
        view.heard_events(key, events, agenda.now_ms)

    listener = Listener(prefilled, lambda rid, found: None, lambda rid, complete: None, published, view.heard_pool)
    params = EngineParams(kv_tokens=3_072, host_kv_tokens=5_120, chunk_tokens=512, prefill_ms_per_token=5.0)
    engines = EnginePool({A: params}, agenda, listener, L3(10_000, 1e6, Link(0.0, 1e6), Link(0.0, 1e6)))
    plan = PrefetchParams(triggers=triggers, recall_turns=2)
    planners.append(Prefetching(agenda, view, engines, CostPolicy(PolicyParams()), plan, lambda worker: None))
    prompts = {f"t{number}": tuple(range(100 * number, 100 * number + 93)) for number in range(8)}
    for name, pages in prompts.items():
        engines.submit(EngineRequest(f"{name} before", 1_000, 1, 1, pages[:62]), A, A)
        run(agenda)
    for name, pages in prompts.items():
        planners[0].sent(name, Subject(pages, 1_500, 1, A, A))
        engines.submit(EngineRequest(name, 1_500, 1, 1, pages), A, A)
    run(agenda)
    return sum(992 - cached[name] for name in prompts)


def test_pages_that_left_l2_are_read_again_for_turns_that_wait() -> None:
    alone, recalled = computed_by_a_crowd(frozenset()), computed_by_a_crowd(frozenset((Trigger.DECISION,)))
    assert alone > 2_000
    assert recalled < alone / 2


def test_arms_are_on_off_or_one_trigger() -> None:
    assert triggers_of("on") == frozenset(Trigger)
    assert triggers_of("off") == frozenset()
    assert triggers_of("decision") == {Trigger.DECISION}
    with pytest.raises(ValueError, match="no 'never': choose from on, off, turn_end"):
        triggers_of("never")


@pytest.mark.slow
def test_every_experiment_comes_in_every_arm() -> None:
    arms = prefetch_arms(exp1_experiments(Choice(), 1, ["B", "C"]), ["on", "off"])
    assert {label: bool(arm.settings.prefetch) for label, arm in arms.items()} == {
        "B on": True,
        "B off": False,
        "C on": True,
        "C off": False,
    }
    with pytest.raises(ValueError, match="A has none"):
        prefetch_arms(exp1_experiments(Choice(), 1, ["A", "B"]), ["on"])
    fork = partial(fork_experiment, seed=1)
    (arm,) = prefetch_arms({"": pooled(fork, Choice())}, ["tool_call"]).items()
    assert arm[0] == "tool_call"
    assert arm[1].cluster.pool_pages > 0
    assert pooled(fork, Choice(host_gb=40.0)).cluster.deployment.host_gb_per_accelerator == 40
    assert arm[1].cluster.deployment.host_gb_per_accelerator > fork(Choice()).cluster.deployment.host_gb_per_accelerator


def test_the_table_tells_what_was_moved_for_nothing() -> None:
    tally = {"moved_bytes": 4e9, "wasted_bytes": 1e9, "warmed_bytes": 0, "warm_wasted_bytes": 0, "saved_ms": 5.0}
    tally |= {"recalled_bytes": 5e9, "recall_wasted_bytes": 1e9}
    out = io.StringIO()
    found = {"on": {"prefetch": {"tool_call": {**tally, "jobs": {"consumed": 3}}}}, "off": {"prefetch": {}}}
    Console(file=out, width=140).print(prefetch_table(found))
    assert "25 %" in out.getvalue()
    assert "20 %" in out.getvalue()
    assert "3 consumed" in out.getvalue()
