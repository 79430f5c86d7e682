"""The ladder from exact deltas down to lineage: who goes down it, when, and who is verified."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.prompts.trust import Level, Trust

LEVELS = list(Level)


def test_a_models_first_prompt_and_one_in_so_many_are_verified() -> None:
    trust = Trust(4)
    assert [trust.due() for _ in range(9)] == [True, False, False, False, True, False, False, False, True]
    assert not any(Trust(0).due() for _ in range(9))


def test_a_verification_that_could_not_be_made_is_made_up_for() -> None:
    trust = Trust(64)
    assert trust.due()
    trust.postpone()
    assert trust.due()
    assert not trust.due()


def test_a_wrong_thread_goes_down_alone_and_a_few_take_the_model_along() -> None:
    trust = Trust(64)
    trust.wrong("a", Level.EXACT, "x")
    assert (trust.level_of("a"), trust.level_of("b"), trust.level) == (Level.WHOLE, Level.EXACT, Level.EXACT)
    trust.wrong("a", Level.WHOLE, "x")
    assert trust.level_of("a") is Level.LINEAGE
    trust.wrong("b", Level.EXACT, "why")
    assert (trust.level, trust.reason) == (Level.WHOLE, "why")
    assert trust.level_of("a") is Level.LINEAGE
    for name in "cde":
        trust.wrong(name, trust.level_of(name), "still")
    assert trust.level is Level.LINEAGE


def test_what_is_rare_is_forgiven() -> None:
    trust = Trust(64)
    for number in range(20):
        trust.wrong(f"t{number}", Level.EXACT, "x")
        for _ in range(1000):
            trust.agree("other")
    assert trust.level is Level.EXACT
    assert trust.mismatches == 20


def test_blocks_that_no_event_names_end_it_unless_one_ever_did() -> None:
    never, once = Trust(64), Trust(64)
    once.looked_for(seen=True)
    for trust in (never, once):
        for _ in range(8):
            assert trust.level is Level.EXACT
            trust.looked_for(seen=False)
    assert (never.level, once.level) == (Level.LINEAGE, Level.EXACT)


def test_refusals_end_it_where_nothing_else_ever_came() -> None:
    trust = Trust(64)
    for number in range(7):
        trust.refused(f"t{number}", "no")
    assert (trust.level, trust.level_of("t0")) == (Level.EXACT, Level.LINEAGE)
    trust.refused("last", "no")
    assert trust.level is Level.LINEAGE


def test_refusals_of_one_client_leave_the_model_to_the_others() -> None:
    trust = Trust(64)
    trust.agree("good")
    for number in range(100):
        trust.refused(f"t{number}", "no")
    assert (trust.level, trust.level_of("t99"), trust.level_of("good")) == (Level.EXACT, Level.LINEAGE, Level.EXACT)


def test_ids_are_forwarded_only_of_proven_threads_and_not_always() -> None:
    trust = Trust(4)
    trust.agree("a")
    assert not trust.forwards("a"), "the model was not verified yet"
    trust.verified += 1
    assert [trust.forwards("a") for _ in range(8)] == [True, True, True, False, True, True, True, False]
    assert not trust.forwards("b")
    trust.wrong("a", Level.EXACT, "x")
    assert not trust.forwards("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["agree", "wrong", "refused"])), max_size=60))
def test_nobody_climbs(steps: list[tuple[str, str]]) -> None:
    trust = Trust(64)
    ranks: dict[str, int] = {}
    for thread, step in steps:
        match step:
            case "agree":
                trust.agree(thread)
            case "wrong":
                trust.wrong(thread, trust.level_of(thread), "x")
            case _:
                trust.refused(thread, "x")
        rank = LEVELS.index(trust.level_of(thread))
        assert rank >= max(ranks.get(thread, 0), LEVELS.index(trust.level))
        ranks[thread] = rank
