"""Clients send when what they wait for is over, not before, and take turns where there is a rota."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.simulate.agenda import Agenda
from bench.simulate.clients import Ask, Clients, Rota
from bench.simulate.workload import Call, SessionPlan, ThreadPlan


class Stage:
    """Clients against a server that answers every call after `reply_ms`."""

    def __init__(self, reply_ms: float, *, until_ms: float = 1e9, rota: Rota | None = None) -> None:
        self.agenda = Agenda()
        self.sent: list[tuple[float, str, int, bool]] = []
        self._reply_ms = reply_ms
        self.clients = Clients(self.agenda, self._answer, until_ms=until_ms, rota=rota)

    def _answer(self, ask: Ask) -> None:
        self.sent.append((self.agenda.now_ms, ask.thread_id, ask.index, ask.rotated))
        self.agenda.after(self._reply_ms, self.clients.done, ask)

    def run(self) -> list[tuple[float, str, int, bool]]:
        while self.agenda.step():
            pass
        return self.sent


def calls(*gaps_ms: float) -> tuple[Call, ...]:
    return tuple(Call(64, 1, (1, 1), gap_ms) for gap_ms in gaps_ms)


def plain(name: str, *gaps_ms: float, start_ms: float = 0.0) -> SessionPlan:
    return SessionPlan(name, (ThreadPlan(calls(*gaps_ms)),), start_ms)


def closed(stage: Stage, plans: Sequence[SessionPlan], concurrency: int) -> list[tuple[float, str, int, bool]]:
    stage.clients.closed_loop(iter(plans), concurrency, ramp_ms=0)
    return stage.run()


def test_a_call_follows_the_reply_before_it_by_its_gap() -> None:
    assert closed(Stage(10), [plain("a", 0, 5, 7)], 1) == [(0, "a", 0, False), (15, "a", 1, False), (32, "a", 2, False)]


def test_a_slot_takes_the_next_session_when_one_has_ended() -> None:
    sent = closed(Stage(10), [plain("a", 0), plain("b", 0), plain("c", 1)], 2)
    assert [(at, name) for at, name, *_ in sent] == [(0, "a"), (0, "b"), (11, "c")]


def test_sessions_start_over_the_ramp() -> None:
    stage = Stage(1000)
    stage.clients.closed_loop(iter([plain("a", 0), plain("b", 0)]), 2, ramp_ms=100)
    assert [at for at, *_ in stage.run()] == [0, 50]


def test_open_loop_keeps_its_times() -> None:
    stage = Stage(1000)
    stage.clients.open_loop(iter([plain("a", 0, start_ms=7), plain("b", 0, start_ms=9)]))
    assert [(at, name) for at, name, *_ in stage.run()] == [(7, "a"), (9, "b")]


def test_children_start_at_once_and_the_parent_waits_for_them() -> None:
    threads = (ThreadPlan(calls(0, 3)), ThreadPlan(calls(0, 20), 0, 0), ThreadPlan(calls(1), 0, 0))
    sent = closed(Stage(10), [SessionPlan("s", threads), plain("next", 0)], 1)
    assert [(at, name, index) for at, name, index, _ in sent] == [
        (0, "s", 0),
        (10, "s.1", 0),
        (11, "s.2", 0),
        (40, "s.1", 1),
        (53, "s", 1),
        (63, "next", 0),
    ]


def test_children_of_the_last_call_end_the_session() -> None:
    threads = (ThreadPlan(calls(0)), ThreadPlan(calls(5), 0, 0))
    sent = closed(Stage(10), [SessionPlan("s", threads), plain("next", 0)], 1)
    assert [(at, name) for at, name, *_ in sent] == [(0, "s"), (15, "s.1"), (25, "next")]


def test_nothing_is_sent_after_the_end() -> None:
    assert len(closed(Stage(10, until_ms=15), [plain("a", 0, 4, 5)], 1)) == 2


def test_a_rota_takes_turns_by_quantum() -> None:
    sent = closed(Stage(10, rota=Rota(1, 15)), [plain("a", 0, 0, 0, 0), plain("b", 0, 0, 0)], 2)
    assert [(at, name, rotated) for at, name, _, rotated in sent] == [
        (0, "a", False),
        (10, "a", False),
        (20, "b", False),
        (30, "b", False),
        (40, "a", True),
        (50, "a", False),
        (60, "b", True),
    ]


def test_a_lone_session_is_not_parked() -> None:
    sent = closed(Stage(10, rota=Rota(1, 5)), [plain("a", 0, 0, 0)], 1)
    assert [at for at, *_ in sent] == [0, 10, 20]


def test_an_active_session_keeps_its_place_while_its_tool_runs() -> None:
    sent = closed(Stage(10, rota=Rota(1, 5)), [plain("a", 0, 100), plain("b", 0, 0)], 2)
    # a is active again at 20, but its tool runs until 110; b has to wait for the end of a's next reply.
    assert [(at, name, rotated) for at, name, _, rotated in sent] == [
        (0, "a", False),
        (10, "b", False),
        (110, "a", True),
        (120, "b", True),
    ]


def test_the_agenda_never_goes_back() -> None:
    agenda = Agenda()
    agenda.at(5, lambda: None)
    assert agenda.step()
    assert not agenda.step()
    with pytest.raises(ValueError, match="past"):
        agenda.at(4, lambda: None)
