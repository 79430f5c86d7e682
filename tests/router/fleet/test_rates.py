import random

import pytest

from costmodel.values import DecodeRates, PrefillRates
from router.fleet.rates import Rates

PREFILL, DECODE = PrefillRates(10, 0.1), DecodeRates(10, 0.1)


def pair() -> tuple[Rates, Rates, Rates]:
    pool = Rates(PREFILL, DECODE)
    return pool, Rates(PREFILL, DECODE, pool), Rates(PREFILL, DECODE, pool)


def test_one_slow_start_does_not_set_two_equal_workers_apart():
    _, first, second = pair()
    first.observe_prefill(1000, 900, 0, 0)
    assert first.prefill(1) == second.prefill(1)
    assert second.prefill(1).ms_per_token > 0.1


def test_a_worker_that_is_slow_again_and_again_goes_by_its_own_rates():
    _, slow, fast = pair()
    for now_ms in range(30):
        slow.observe_prefill(1000 + now_ms, 900, 0, now_ms)
        fast.observe_prefill(1000 + now_ms, 100, 0, now_ms)
    assert slow.prefill(30).ms_per_token > 3 * fast.prefill(30).ms_per_token


def test_a_worker_that_fell_silent_is_taken_for_one_of_its_pool_again():
    pool, slow, fast = pair()
    for now_ms in range(20):
        slow.observe_decode(1, 100, 1000, now_ms)
    for now_ms in range(200_000, 200_100):
        fast.observe_decode(1, 10, 100, now_ms)
    assert slow.decode(200_100) == pool.decode(200_100)
    assert slow.decode(30).itl_base_ms > 2 * fast.decode(200_100).itl_base_ms


def test_without_timed_turns_the_engines_counters_speak():
    _, worker, _ = pair()
    worker.observe_report(0, 0, 0)
    worker.observe_report(100_000, 5_000_000, 0)
    assert abs(worker.prefill(0).ms_per_token - 0.05) < 1e-9


def test_few_replies_at_one_batch_do_not_make_a_worker_look_as_fast_at_any():
    pool, first, second = pair()
    rng = random.Random(1)
    for now_ms in range(400):
        batch = rng.randrange(8, 25)
        second.observe_decode(batch, (20 + batch) * rng.uniform(0.95, 1.05), 1000, now_ms)
    for now_ms in range(8):
        first.observe_decode(15, 33.0 - now_ms % 2, 1000, now_ms)
    line, own = pool.decode(8), first.decode(8)
    assert own.itl_ms_per_running > 0.9 * line.itl_ms_per_running
    assert own.itl_base_ms + 15 * own.itl_ms_per_running == pytest.approx(32.5, rel=0.01)


def test_a_slow_worker_is_as_much_slower_when_its_pool_turns_out_otherwise():
    _, slow, fast = pair()
    for now_ms in range(16):
        slow.observe_decode(10, 60.0, 1000, now_ms)
    for now_ms in range(100):
        fast.observe_decode(10, 30.0, 1000, now_ms)
    for rates, itl_ms in ((slow, 60.0), (fast, 30.0)):
        decode = rates.decode(100)
        assert decode.itl_base_ms + 10 * decode.itl_ms_per_running == pytest.approx(itl_ms, rel=0.01)
