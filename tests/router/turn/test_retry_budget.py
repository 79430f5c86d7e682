from router.config.tree import RetryConfig
from router.turn.budget import RetryBudget


def test_the_floor_is_always_there_and_the_rest_is_a_share_of_turns():
    budget = RetryBudget(RetryConfig(budget_ratio=0.1, budget_floor=2))
    for _ in range(30):
        budget.on_turn(0)
    assert [budget.take(1) for _ in range(6)] == [True] * 5 + [False]


def test_it_comes_back_with_time():
    budget = RetryBudget(RetryConfig(budget_ratio=0, budget_floor=1))
    assert budget.take(0)
    assert not budget.take(1)
    assert not budget.take(10_001)  # still in the window before
    assert budget.take(30_000)
