"""Turns that wait for room at their worker: in order, and never while an engine would run dry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from costmodel.values import WorkerKey
from router.fleet.hold import KEEP_TURNS, KV_SHARE, Held, Hold, Standing
from router.fleet.ledger import Ahead

A, B = WorkerKey("a"), WorkerKey("b")
LIMIT_MS = 100.0


def ahead(turns: int) -> Ahead:
    return Ahead(turns, 60.0 * turns, 0.0)


class Site:
    """Two workers that turns of 60 ms go to, and a clock that calls back."""

    def __init__(self, limit_ms: float = LIMIT_MS) -> None:
        self.now_ms = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.hold = Hold(limit_ms, lambda: self.now_ms, self.later)
        self.at: dict[WorkerKey, list[str]] = {A: [], B: []}
        self.wants: dict[str, WorkerKey] = {}
        self.waits: dict[str, Held] = {}
        self.gone: list[str] = []

    def later(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.due.append((self.now_ms + delay_ms, call))

    def come(self, turn: str, worker: WorkerKey) -> None:
        self.wants[turn] = worker
        must = self.place(turn, Standing.COMES)
        if must is not None:
            self.waits[turn] = self.hold.wait(must, self.now_ms, lambda standing: self.place(turn, standing))

    def place(self, turn: str, standing: Standing) -> WorkerKey | None:
        worker = self.wants[turn]
        if self.hold.must_wait(worker, ahead(len(self.at[worker])), standing):
            return worker
        self.at[worker].append(turn)
        self.gone.append(turn)
        return None

    def over(self, worker: WorkerKey) -> None:
        self.at[worker].pop(0)
        self.hold.freed(worker)

    def sleep(self, ms: float) -> None:
        until_ms = self.now_ms + ms
        while (soon := min((due for due in self.due if due[0] <= until_ms), key=lambda due: due[0], default=None)) is not None:
            self.due.remove(soon)
            self.now_ms = soon[0]
            soon[1]()
        self.now_ms = until_ms


def test_turns_wait_behind_enough_work_and_go_in_order() -> None:
    site = Site()
    for turn in ("1", "2", "3", "4"):
        site.come(turn, A)
    site.come("5", B)
    assert (site.gone, site.hold.waiting) == (["1", "2", "5"], 2)
    site.over(A)
    assert site.gone[3:] == ["3"], "one is over, one goes"
    site.over(A)
    assert site.gone[4:] == ["4"]
    assert (site.hold.waiting, site.hold.held) == (0, 2)


def test_newcomers_do_not_pass_those_in_line() -> None:
    site = Site()
    for turn in ("1", "2", "3"):
        site.come(turn, A)
    assert site.hold.must_wait(A, Ahead(KEEP_TURNS, 1.0, 0.0), Standing.COMES)
    assert not site.hold.must_wait(A, Ahead(KEEP_TURNS, 1.0, 0.0), Standing.OFFERED)
    assert not site.hold.must_wait(A, Ahead(KEEP_TURNS - 1, 1e9, 9.0), Standing.COMES), "the engine would run dry"


def test_prompts_that_want_too_much_of_l1_together_are_held_as_well() -> None:
    hold = Site().hold
    assert hold.must_wait(A, Ahead(KEEP_TURNS, 0.0, KV_SHARE), Standing.COMES)
    assert not hold.must_wait(A, Ahead(KEEP_TURNS, 0.0, KV_SHARE / 2), Standing.COMES)


def test_a_turn_is_placed_anew_where_there_is_room() -> None:
    site = Site()
    for turn in ("1", "2", "3", "4"):
        site.come(turn, A)
    site.come("5", B)
    site.wants["3"] = B  # by now it would go elsewhere
    site.over(B)
    assert site.at == {A: ["1", "2"], B: ["3"]}, "nobody waits for b: it is offered to the first in line for a"
    site.over(B)
    assert site.hold.waiting == 1, "the next in line still prefers a"
    site.over(A)
    assert site.at[A] == ["2", "4"]


def test_a_turn_that_now_prefers_a_full_worker_joins_its_line() -> None:
    site = Site()
    for turn in ("1", "2", "3"):
        site.come(turn, A)
    for turn in ("5", "6", "7"):
        site.come(turn, B)
    site.wants["3"] = B
    site.over(A)
    assert (site.gone, site.hold.waiting) == (["1", "2", "5", "6"], 2)
    site.over(B)
    assert site.gone[4:] == ["3"], "it came before 7"


def test_those_in_line_are_looked_at_again_without_an_event() -> None:
    site = Site()
    for turn in ("1", "2", "3", "4"):
        site.come(turn, A)
    site.waits["3"].cancel()
    site.waits["3"].cancel()
    assert site.hold.waiting == 1
    site.sleep(1001)
    assert site.hold.waiting == 1
    site.wants["4"] = B  # a is lost, say
    site.sleep(1001)
    assert (site.gone, site.hold.waiting) == (["1", "2", "4"], 0)
    assert site.hold.held_ms >= 1001
    site.sleep(10_000)
    assert not site.due, "nothing is looked at while nobody waits"


def test_a_free_worker_is_offered_down_the_line() -> None:
    site = Site()
    for turn in ("1", "2", "3", "4", "5"):
        site.come(turn, A)
    site.come("6", B)
    site.wants["5"] = B
    site.over(B)
    assert site.at[B] == ["5"], "the two before it prefer a"
    site.wants["4"] = B
    site.sleep(1001)
    assert site.at[B] == ["5", "4"], "without an event as well"


def test_off_nobody_waits() -> None:
    site = Site(limit_ms=0.0)
    for turn in range(20):
        site.come(str(turn), A)
    assert (len(site.gone), site.hold.held) == (20, 0)


class HoldMachine(RuleBasedStateMachine):
    """Whatever comes, ends, leaves or changes its mind: nobody is lost, gone twice or waiting at a worker that runs dry."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site()
        self.left: set[str] = set()

    @rule(worker=st.sampled_from([A, B]))
    def come(self, worker: WorkerKey) -> None:
        self.site.come(str(len(self.site.wants)), worker)

    @rule(worker=st.sampled_from([A, B]))
    def over(self, worker: WorkerKey) -> None:
        if self.site.at[worker]:
            self.site.over(worker)

    @precondition(lambda self: self.site.hold.waiting)
    @rule(data=st.data(), leaves=st.booleans())
    def change(self, data: st.DataObject, leaves: bool) -> None:
        turn = data.draw(st.sampled_from([each for each in self.site.waits if each not in {*self.site.gone, *self.left}]))
        if leaves:
            self.site.waits[turn].cancel()
            self.left.add(turn)
        else:
            self.site.wants[turn] = B if self.site.wants[turn] == A else A

    @rule(ms=st.sampled_from([1.0, 999.0, 6000.0]))
    def sleep(self, ms: float) -> None:
        self.site.sleep(ms)

    @invariant()
    def nobody_is_lost(self) -> None:
        site = self.site
        waiting = set(site.wants) - set(site.gone) - self.left
        assert len(site.gone) == len(set(site.gone))
        assert site.hold.waiting == len(waiting)
        if waiting:
            assert site.due, "somebody looks again"
        if all(len(turns) < KEEP_TURNS for turns in site.at.values()):
            assert len(waiting) == 0 or any(self.moved(turn) for turn in waiting)

    def moved(self, turn: str) -> bool:
        """It changed its mind since it was last offered: it is looked at within a second."""
        return self.site.waits[turn].worker != self.site.wants[turn]


TestHoldMachine = pytest.mark.slow(HoldMachine.TestCase)
