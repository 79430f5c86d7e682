from router.fleet.breaker import Breaker


def make() -> Breaker:
    return Breaker(failures=3, window_ms=1000, open_ms=500)


def test_opens_only_after_enough_failures_within_the_window():
    breaker = make()
    for now_ms in (0, 600, 1700):  # never three within a second
        breaker.on_failure(now_ms)
    assert breaker.allows(1700)
    breaker.on_failure(1710)
    assert breaker.allows(1710)
    breaker.on_failure(1720)
    assert not breaker.allows(1721)
    assert breaker.state(1721) == "open"


def test_lets_one_trial_through_and_closes_on_its_success():
    breaker = make()
    for _ in range(3):
        breaker.on_failure(0)
    assert breaker.allows(500)
    breaker.on_dispatch()
    assert not breaker.allows(501)
    breaker.on_success()
    assert breaker.allows(502)
    assert breaker.state(502) == "closed"


def test_a_failed_trial_opens_it_again_at_once():
    breaker = make()
    for _ in range(3):
        breaker.on_failure(0)
    breaker.on_dispatch()
    breaker.on_failure(600)
    assert not breaker.allows(1000)
    assert breaker.allows(1100)


def test_a_trial_whose_client_left_may_be_taken_again():
    breaker = make()
    for _ in range(3):
        breaker.on_failure(0)
    breaker.on_dispatch()
    breaker.on_abandoned()
    assert breaker.allows(600)


def test_success_forgets_earlier_failures():
    breaker = make()
    breaker.on_failure(0)
    breaker.on_failure(1)
    breaker.on_success()
    breaker.on_failure(2)
    assert breaker.allows(3)


def test_what_nobody_served_counts_a_quarter():
    breaker = make()
    for _ in range(3 * 4 - 1):
        breaker.on_doubtful_failure(0)
    assert breaker.state(1) == "closed"
    breaker.on_doubtful_failure(0)
    assert breaker.state(1) == "open"
    assert breaker.answers


def test_a_trial_that_nobody_else_served_may_be_taken_again():
    breaker = make()
    for _ in range(3):
        breaker.on_failure(0)
    breaker.on_dispatch()
    breaker.on_doubtful_failure(600)
    assert breaker.allows(600)
    assert not breaker.answers
