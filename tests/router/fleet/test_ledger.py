import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.base import LoadReport
from router.fleet.ledger import Ledger, Work, doubted_at


def test_two_turns_in_the_same_millisecond_see_each_other():
    ledger = Ledger()
    ledger.book_prefill(1, Work(1000, 1000 / 10), 0)
    assert ledger.load(0, 0.1).queued_uncached_tokens == 1000
    ledger.book_prefill(2, Work(500, 500 / 10), 0)
    assert ledger.load(0, 0.1).queued_uncached_tokens == 1500


def test_work_is_worked_off_at_the_measured_rate_but_never_beyond_the_head():
    ledger = Ledger()
    ledger.book_prefill(1, Work(1000, 1000 / 10), 0)
    ledger.book_prefill(2, Work(500, 500 / 10), 0)
    assert ledger.load(50, 0.1).queued_uncached_tokens == 1000
    assert ledger.load(10_000, 0.1).queued_uncached_tokens == 500  # the head is done, the next not known to have begun


def test_a_report_and_the_own_bookings_are_not_added_up():
    ledger = Ledger()
    ledger.book_prefill(1, Work(1000, 1000 / 10), 0)
    ledger.reported(LoadReport(0, 2, 1, waiting_uncached_tokens=700, kv_tokens_used=10, kv_tokens_capacity=100), 5)
    load = ledger.load(5, 1e9)
    assert load.queued_uncached_tokens == pytest.approx(1000)
    assert (load.running_requests, load.waiting_requests, load.kv_tokens_capacity) == (2, 1, 100)
    ledger.settle_prefill(1, 6)
    assert ledger.load(7, 0.1).queued_uncached_tokens == pytest.approx(680)
    assert ledger.load(9, 0.1).age_ms == 4


def test_what_a_report_found_waiting_is_worked_off_too():
    ledger = Ledger()
    ledger.reported(LoadReport(0, 0, 1, waiting_uncached_tokens=9_000), 0)
    assert ledger.load(0, 0.1).queued_uncached_tokens == 9_000
    assert ledger.load(400, 0.1).queued_uncached_tokens == pytest.approx(5_000)
    assert ledger.load(950, 0.1).queued_uncached_tokens == 0
    assert ledger.load(950, 0.0).queued_uncached_tokens == 9_000  # no rate, no progress


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0, 1e6)), max_size=60))
def test_nothing_is_left_when_everything_is_settled(steps):
    ledger = Ledger()
    for books, turn, tokens in steps:
        if books:
            ledger.book_prefill(turn + 100 * len(steps), Work(tokens, tokens / 2), 0)
            ledger.book_decode(turn, 1, 0)
        else:
            ledger.settle_prefill(turn + 100 * len(steps), 1)
            ledger.settle_decode(turn, 1)
        assert ledger.load(1, 0.5).queued_uncached_tokens >= 0
    for turn in range(6):
        ledger.settle_prefill(turn + 100 * len(steps), 2)
        ledger.settle_decode(turn, 1)
    assert ledger.inflight == 0
    assert ledger.load(3, 0.5).queued_uncached_tokens == 0
    assert ledger.load(3, 0.5).queued_ms == 0
    assert ledger.decoding_tokens == 0


def test_work_ahead_is_told_in_ms_as_it_was_predicted():
    ledger = Ledger()
    ledger.book_prefill(1, Work(1000, 100.0, transfer_ms=10.0), 0)
    ledger.book_prefill(2, Work(10, 50.0), 20)
    assert ledger.load(20, 0.1).queued_ms == 130
    assert ledger.load(400, 0.1).queued_ms == 50, "the head is late; the next is not known to have begun"
    ledger.settle_prefill(1, 120)
    assert ledger.load(120, 0.1).queued_ms == 40, "it was computed while the first one's KV was sent"
    ledger.settle_prefill(2, 150)
    ledger.settle_prefill(2, 160)
    assert ledger.load(160, 0.1).queued_ms == 0


def test_a_report_of_more_work_counts_in_ms_too():
    ledger = Ledger()
    ledger.reported(LoadReport(0, 0, 1, waiting_uncached_tokens=9_000), 0)
    assert ledger.load(400, 0.1).queued_ms == pytest.approx(500)


def test_decoding_contexts_add_up():
    ledger = Ledger()
    ledger.book_decode(1, 700, 0)
    ledger.book_decode(2, 300, 0)
    assert ledger.decoding_tokens == 1000
    ledger.settle_decode(1, 1)
    ledger.settle_decode(1, 1)
    assert ledger.decoding_tokens == 300


def test_the_mean_batch_of_a_reply_counts_who_came_and_went_meanwhile():
    ledger = Ledger()
    ledger.book_decode(1, 100, 0)
    first = ledger.batch_ms(1000)
    ledger.book_decode(2, 100, 1500)
    ledger.book_decode(3, 100, 1500)
    ledger.settle_decode(2, 2500)
    ledger.settle_decode(2, 2600)
    ledger.settle_decode(1, 3000)
    assert (ledger.batch_ms(3000) - first) / 2000 == pytest.approx((1 * 500 + 3 * 1000 + 2 * 500) / 2000)
    ledger.settle_decode(3, 3500)
    assert ledger.batch_ms(9000) == ledger.batch_ms(3500)


def test_a_report_of_decoding_ages_by_what_was_booked_and_settled_since():
    ledger = Ledger()
    for turn in range(4):
        ledger.book_decode(turn, 1000, 0)
    ledger.reported(LoadReport(0, 2, 2, kv_tokens_used=2500, kv_tokens_capacity=9000), 0)
    assert (ledger.load(0, 0.1).running_requests, ledger.load(0, 0.1).waiting_requests) == (2, 2), "four in all, not six"
    ledger.book_decode(4, 700, 0)
    ledger.book_decode(5, 300, 0)
    ledger.settle_decode(0, 1)
    load = ledger.load(900, 0.1)
    assert load.running_requests + load.waiting_requests == 5
    assert load.kv_tokens_used == 2500


def test_others_turns_count_beside_the_own():
    ledger = Ledger()
    ledger.reported(LoadReport(0, 7, 1, kv_tokens_used=5000), 0)
    ledger.book_decode(1, 400, 0)
    load = ledger.load(10, 0.1)
    assert load.running_requests + load.waiting_requests == 9
    assert load.kv_tokens_used == 5400


def test_without_reports_a_unified_workers_turns_are_counted_once():
    ledger = Ledger()
    for turn in range(3):
        ledger.book_prefill(turn, Work(100, 10.0), 0)
        ledger.book_decode(turn, 100, 0)
    load = ledger.load(0, 0.1)
    assert (load.running_requests + load.waiting_requests, load.queued_turns) == (3, 3)


def test_how_many_turns_wait_is_told_only_with_the_own_prediction():
    ledger = Ledger()
    ledger.book_prefill(1, Work(100, 10.0), 0)
    ledger.reported(LoadReport(0, 0, 5, waiting_uncached_tokens=9_000), 0)
    assert ledger.load(0, 0.1).queued_turns == 0
    assert ledger.load(900, 0.1).queued_turns == 1


def test_what_is_ahead_counts_prompts_against_l1() -> None:
    ledger = Ledger()
    ledger.book_prefill(1, Work(10, 100.0, prompt_tokens=300), 0)
    ledger.book_prefill(2, Work(10, 50.0, prompt_tokens=200), 0)
    assert ledger.ahead(0) == (2, 150.0, 0.0), "nothing is known of its size"
    ledger.reported(LoadReport(0, 0, 0, kv_tokens_capacity=1000), 0)
    assert ledger.ahead(30) == (2, 120.0, 0.5)
    ledger.settle_prefill(1, 40)
    assert ledger.ahead(50) == (1, 40.0, 0.2)


def test_what_is_stuck_is_not_ahead_of_others() -> None:
    ledger = Ledger()
    ledger.book_prefill(1, Work(10, 2000.0, doubted_ms=doubted_at(0, 2000.0)), 0)
    ledger.book_prefill(2, Work(10, 100.0), 0)
    assert ledger.ahead(10_000).turns == 2
    assert ledger.ahead(12_000) == (1, 100.0, 0.0)
    assert ledger.load(12_000, 1.0).queued_turns == 2, "where it is placed, the worker still looks busy"


def test_a_prefill_that_nobody_tells_of_is_over_when_it_was_to_be() -> None:
    ledger = Ledger()
    ledger.book_prefill(1, Work(10, 100.0, over_ms=100.0), 0)
    ledger.book_prefill(2, Work(20, 50.0, over_ms=150.0), 0)
    assert ledger.ahead(99).turns == 2
    assert ledger.ahead(120) == (1, 30.0, 0.0)
    load = ledger.load(200, 1.0)
    assert (load.queued_ms, load.queued_turns, load.queued_uncached_tokens) == (0.0, 0, 0.0)
    ledger.settle_prefill(1, 300)
    assert ledger.ahead(300).turns == 0


def test_warm_requests_of_ours_are_no_load():
    ledger = Ledger()
    ledger.warming = 2
    ledger.reported(LoadReport(0, 3, 3, waiting_uncached_tokens=9_000), 0)
    load = ledger.load(0, 0.1)
    assert (load.running_requests, load.waiting_requests, load.queued_uncached_tokens) == (3, 1, 3_000)
    ledger.reported(LoadReport(0, 3, 1, waiting_uncached_tokens=9_000), 0)
    load = ledger.load(0, 0.1)
    assert (load.running_requests, load.waiting_requests, load.queued_uncached_tokens) == (2, 0, 0)
    ledger.reported(LoadReport(0, 0, 0), 0)
    assert ledger.load(0, 0.1).running_requests == 0, "a report that was made before they came"
    ledger.warming = 0
    ledger.reported(LoadReport(0, 3, 3, waiting_uncached_tokens=9_000), 0)
    assert ledger.load(0, 0.1).waiting_requests == 3
