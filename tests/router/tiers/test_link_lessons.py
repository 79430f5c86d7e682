"""Agents' counters become the links of the workers on their nodes."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.values import Residency, Run, Tier, Turn
from engine_adapters.base import EngineInfo
from kvtier.control.node_control import NodeReport
from router.config.tree import Config
from router.fleet.fleet import Fleet
from router.tiers.link_lessons import LinkLessons
from router.turn.place import explain


def fleet() -> Fleet:
    workers = [{"name": name, "url": f"http://127.0.0.1:{port}", "node": node} for name, port, node in PLACES]
    pool: dict[str, Any] = {"name": "main", "unified": workers}
    return Fleet(Config.model_validate({"pools": [pool]}))


PLACES = (("u0", 9101, "a"), ("u1", 9102, "a"), ("u2", 9103, "b"))


def report(epoch: int = 1, **ways: tuple[float, float]) -> NodeReport:
    numbers = {"pages": 3.0}
    for name, (size_bytes, busy_ms) in ways.items():
        way = name.replace("_", ":")
        numbers |= {f"moved_bytes:{way}": size_bytes, f"moved_busy_ms:{way}": busy_ms}
    return NodeReport("a", epoch, numbers, ())


def test_what_was_counted_since_the_last_report_teaches_every_worker_of_the_node() -> None:
    known = fleet()
    lessons = LinkLessons(known)
    for n in range(1, 40):
        lessons.heard(report(L3=(2e9 * n, 1e3 * n), L4=(1e8 * n, 1e3 * n), L3_b=(5e8 * n, 1e3 * n)))
    for name in ("u0", "u1"):
        links = known.find(name)[1].links
        assert links.restore[Tier.L3].bytes_per_ms == pytest.approx(2e6)
        assert links.restore[Tier.L4].bytes_per_ms == pytest.approx(1e5)
        assert links.sources["b"].bytes_per_ms == pytest.approx(5e5)
    elsewhere, untold = known.find("u2")[1].links, fleet().find("u2")[1].links
    assert (elsewhere.restore, elsewhere.sources) == (untold.restore, {}), "another node's links are its own"


def test_another_life_of_an_agent_is_counted_from_its_beginning() -> None:
    known = fleet()
    lessons, links = LinkLessons(known), known.find("u0")[1].links
    lessons.heard(report(L3=(1e12, 1e5)))
    for n in range(1, 40):
        lessons.heard(report(epoch=2, L3=(1e9 * n, 1e3 * n)))
    assert links.restore[Tier.L3].bytes_per_ms == pytest.approx(1e6)
    lessons.heard(report(epoch=2, L3=(1.0, 1.0)))
    assert links.restore[Tier.L3].bytes_per_ms == pytest.approx(1e6), "what went back teaches nothing"


def test_names_that_are_no_ways_are_passed_over() -> None:
    known = fleet()
    before = known.find("u0")[1].links.restore
    odd = {"moved_bytes:L9": 1e9, "moved_busy_ms:L9": 1.0, "moved_bytes:L3": 1e9, "moved_bytes:": 1.0}
    LinkLessons(known).heard(NodeReport("a", 1, odd, ()))
    assert known.find("u0")[1].links.restore == before


def test_turns_are_placed_and_explained_by_what_was_learned() -> None:
    known = fleet()
    pool = known.pools["main"]
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
    LinkLessons(known).heard(report(L3_c=(1e6, 1e3)))
    held = Residency((Run(0, 50_000, Tier.L3, "c"),))
    residencies = {worker.keys[0]: held for worker in pool.workers.values()}
    placement = explain(pool, Turn("t", 60_000), residencies, 0.0)
    fetched = {each.prefill.worker_id: each.terms.fetch_ms for each in (placement.decision.chosen, *placement.decision.others)}
    assert placement.prefill.worker_id == "u2", "it is on another node, whose link to c nobody has seen to be slow"
    assert fetched["u0"] == fetched["u1"] > 1000 * fetched["u2"]
