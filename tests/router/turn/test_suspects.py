"""Whose fault a 5xx is, over any mix of requests: the pure rules, with the tries of a turn as the gateway makes them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.base import EngineInfo
from router.config.tree import Config
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.turn.suspects import Suspects

OPEN_S = 3600
FAILURES = 5


def pool_of(workers: int) -> Pool:
    urls = [{"url": f"http://127.0.0.1:{number}", "name": f"u{number}"} for number in range(1, workers + 1)]
    tree = {"pools": [{"models": ["m"], "unified": urls}], "breaker": {"failures": FAILURES, "open_s": OPEN_S}}
    pool = Fleet(Config.model_validate(tree)).pools["default"]
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("sglang", ("m",), page_size=16))
    return pool


def turn(pool: Pool, fails: set[str], now_ms: float, rng: Random, tries: int = 3) -> bool:
    """Whether one request is served that the workers of `fails` answer with a 5xx. No worker left counts as not."""
    failed: set[str] = set()
    suspects = Suspects()
    served = False
    for _ in range(tries):
        able: list[Worker] = pool.able(now_ms, failed)
        if not able:
            break
        worker = rng.choice(able)
        worker.breaker.on_dispatch()
        if worker.worker_id not in fails:
            suspects.another_serves(now_ms)
            worker.breaker.on_success()
            served = True
            break
        failed.add(worker.worker_id)
        suspects.add(worker)
    suspects.nobody_served(now_ms)
    return served


@settings(deadline=None, max_examples=50)
@given(bad=st.lists(st.booleans(), max_size=200), workers=st.integers(1, 4), seed=st.integers(0, 999), tries=st.integers(1, 3))
def test_good_requests_are_served_whatever_bad_ones_come(bad: list[bool], workers: int, seed: int, tries: int) -> None:
    pool, rng = pool_of(workers), Random(seed)
    for now_ms, is_bad in enumerate(bad):
        assert turn(pool, set(pool.workers) if is_bad else set(), now_ms, rng, tries) is not is_bad


@settings(deadline=None, max_examples=50)
@given(bad=st.lists(st.booleans(), min_size=400, max_size=400), workers=st.integers(3, 5), seed=st.integers(0, 999))
def test_a_worker_that_fails_everything_rests_whatever_bad_requests_come(bad: list[bool], workers: int, seed: int) -> None:
    pool, rng = pool_of(workers), Random(seed)
    for now_ms, is_bad in enumerate(bad):
        turn(pool, set(pool.workers) if is_bad else {"u1"}, now_ms, rng)
        if not pool.workers["u1"].breaker.allows(now_ms):
            return
    assert sum(not is_bad for is_bad in bad) < 100, "it was never taken out"


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_pool_that_fails_everything_is_noticed(workers: int) -> None:
    pool, rng = pool_of(workers), Random(1)
    for now_ms in range(4 * FAILURES * workers):
        assert not turn(pool, set(pool.workers), now_ms, rng)
    assert [worker.breaker.state(100.0) for worker in pool.workers.values()] == ["open"] * workers


def test_outages_keep_a_worker_out_even_where_it_is_the_last() -> None:
    pool = pool_of(1)
    (worker,) = pool.workers.values()
    for _ in range(FAILURES):
        worker.breaker.on_failure(0.0, answered=True)
    assert pool.able(1.0) == [worker]
    worker.breaker.on_failure(1.0)  # nobody was there
    assert pool.able(2.0) == []


def test_blame_is_whole_once_another_serves_and_a_quarter_where_nobody_does() -> None:
    pool = pool_of(2)
    one, other = pool.workers.values()
    for now_ms in range(4 * FAILURES - 1):
        suspects = Suspects()
        for worker in (one, one, other):
            suspects.add(worker)
        assert suspects.nobody_served(now_ms)
        assert not suspects.nobody_served(now_ms), "each is blamed once"
    assert [one.breaker.state(100.0), other.breaker.state(100.0)] == ["closed", "closed"]
    suspects = Suspects()
    suspects.add(one)
    suspects.another_serves(100.0)
    assert not suspects.nobody_served(100.0)
    assert [one.breaker.state(101.0), other.breaker.state(101.0)] == ["open", "closed"]
