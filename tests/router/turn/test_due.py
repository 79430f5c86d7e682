"""Which deadline a turn has, and which turns are refused for want of a worker that could keep it."""

from __future__ import annotations

import random

import msgspec
import pytest

from costmodel.values import Turn
from engine_adapters.base import EngineInfo
from router.config.load import ConfigError, parse_config
from router.errors import BadRequest, Shed
from router.fleet.ledger import Work
from router.fleet.pool import Pool
from router.turn.due import Due, due_of, due_within
from router.turn.place import explain, place

POOL = "pools: [{unified: [{url: 'http://127.0.0.1:1', name: a}, {url: 'http://127.0.0.1:2', name: b}]}]\n"
SLO = (
    POOL + "policy: {objective: slo, slo: {ttft_ms: 9000}, classes: {fast: {ttft_ms: 500, shed: true}, slow: {ttft_ms: 60000}}}"
)
FAST = Due("fast", 500.0, shed=True)


def policy(text: str = SLO):
    return parse_config(text, "test", {}).policy


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ([], Due("default", 9000.0, shed=False)),
        ([(b"x-loadback-class", b"default")], Due("default", 9000.0, shed=False)),
        ([(b"x-other", b"1"), (b"x-loadback-class", b" fast ")], FAST),
        ([(b"x-loadback-class", b"slow")], Due("slow", 60_000.0, shed=False)),
    ],
)
def test_a_turn_is_due_by_its_class(headers, due) -> None:
    assert due_of(policy(), headers) == due


def test_a_class_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="fast, slow") as refused:
        due_of(policy(), [(b"x-loadback-class", b"urgent")])
    assert refused.value.param == "x-loadback-class"


def test_without_the_objective_nothing_is_due_and_the_header_is_not_read() -> None:
    assert due_of(policy(POOL), [(b"x-loadback-class", b"urgent")]) is None


def test_another_deadline_may_be_asked_about_where_deadlines_count() -> None:
    assert due_within(policy(), [(b"x-loadback-class", b"fast")], 70.0) == Due("fast", 70.0, shed=True)
    with pytest.raises(BadRequest, match=r"policy\.objective e2e: set it to slo"):
        due_within(policy(POOL), [], 70.0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("policy: {classes: {fast: {ttft_ms: 1}}}", "objective: slo"),
        ("policy: {slo: {ttft_ms: 1}}", "objective: slo"),
        ("policy: {name: sticky, objective: ttft}", "only `cost`"),
        ("policy: {objective: slo, slo: {ttft_ms: 1}, classes: {default: {ttft_ms: 2}}}", "give one of them"),
        ("policy: {objective: slo, slo: {ttft_ms: 0}}", "policy.slo.ttft_ms"),
    ],
)
def test_what_would_not_be_read_is_refused(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        policy(POOL + text)


def pool_with(queued_ms: float) -> Pool:
    config = parse_config(SLO, "test", {})
    pool = Pool(config.pools[0], config)
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
        worker.ranks[0].book_prefill(0, Work(1000, queued_ms), 0.0)
    return pool


def place_turn(pool: Pool, due: Due | None):
    turn = Turn("t", 1000, 10, deadline_ms=due.ttft_ms if due else None)
    return place(pool, turn, {}, failed=frozenset(), now_ms=0.0, rng=random.Random(1), due=due)


def test_a_turn_that_would_be_late_everywhere_is_shed_where_its_class_says_so() -> None:
    pool = pool_with(queued_ms=4000.0)
    with pytest.raises(Shed, match="'fast'") as shed:
        place_turn(pool, FAST)
    assert shed.value.status == 503
    assert 3 < shed.value.retry_after_s < 5
    assert place_turn(pool, msgspec.structs.replace(FAST, shed=False)).decision.chosen.terms.ttft_ms > 4000
    assert place_turn(pool, None)


def test_one_worker_in_time_is_enough() -> None:
    pool = pool_with(queued_ms=4000.0)
    pool.workers["b"].ranks[0].settle_prefill(0, 0.0)
    assert place_turn(pool, FAST).prefill.worker_id == "b"


def test_the_wait_that_is_told_is_bounded() -> None:
    with pytest.raises(Shed) as shed:
        place_turn(pool_with(queued_ms=1e9), FAST)
    assert shed.value.retry_after_s == 60


def test_a_dry_run_sheds_nothing() -> None:
    pool = pool_with(queued_ms=4000.0)
    pool.workers["b"].ranks[0].book_prefill(1, Work(1000, 1000.0), 0.0)
    turn = Turn("t", 1000, 10, deadline_ms=500.0)
    decision = explain(pool, turn, {}, 0.0).decision
    assert decision.chosen.terms.ttft_ms > 500
    assert len(decision.others) == 1
    assert decision.reason.endswith("no guard changed it")


def test_without_prediction_only_reports_count() -> None:
    config = parse_config(POOL + "policy: {predict_on_route: false}", "test", {})
    pool = Pool(config.pools[0], config)
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
    pool.workers["a"].ranks[0].book_prefill(0, Work(1000, 4000.0), 0.0)
    assert {place_turn(pool, None).decision.chosen.terms.queue_ms for _ in range(20)} == {0.0}
