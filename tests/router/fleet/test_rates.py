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
