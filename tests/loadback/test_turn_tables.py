"""Turns seen from both sides are joined by request id, and every figure of a session is in its row."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.swarm.turns import TurnRecord
from loadback.admin_api import Actual, PastTurn, Terms
from loadback.demo_command import prediction_error
from loadback.turn_tables import counted, join, sessions_table, turns_table


def client(thread: str, number: int, request_id: str, *, first: bool = False, cached: int = 0) -> TurnRecord:
    return TurnRecord(
        session=thread.split(".")[0],
        thread=thread,
        number=number,
        first_call=first,
        started_s=0.0,
        request_id=request_id,
        worker="p0>d0",
        ttft_ms=20.0,
        total_ms=80.0,
        prompt_tokens=1000,
        cached_tokens=cached,
    )


def past(request_id: str, tier: str | None = "L1") -> PastTurn:
    terms = Terms(ttft_ms=11.0, total_ms=61.0)
    actual = Actual(ttft_ms=12.5, total_ms=62.5, cached_by_tier={tier: 250} if tier else None)
    return PastTurn(id=request_id, predicted=terms, actual=actual, hit_tier=tier)


def drawn(table: object) -> str:
    console = Console(width=160, record=True, quiet=True, color_system=None)
    with console.capture() as capture:
        console.quiet = False
        console.print(table)
    return capture.get()


def test_join_matches_by_id_and_orders_by_thread() -> None:
    turns = [client("s2", 0, "c"), client("s1", 1, "b"), client("s1.1", 0, "d"), client("s1", 0, "a")]
    seen = join(turns, [past("a"), past("b"), past("x")])
    assert [(turn.client.thread, turn.client.number) for turn in seen] == [("s1", 0), ("s1", 1), ("s1.1", 0), ("s2", 0)]
    assert [turn.gateway is not None for turn in seen] == [True, True, False, False]


def test_the_gateways_times_are_shown_where_known_and_the_clients_else() -> None:
    known, unknown = join([client("s1", 0, "a"), client("s1", 1, "b")], [past("a")])
    assert (known.predicted_ttft_ms, known.actual_ttft_ms, known.actual_total_ms) == (11.0, 12.5, 62.5)
    assert (unknown.predicted_ttft_ms, unknown.actual_ttft_ms, unknown.actual_total_ms) == (None, 20.0, 80.0)


def test_rows_hold_the_figures() -> None:
    turns = [client("s1", 0, "a", first=True, cached=250), client("s1", 1, "b", cached=900)]
    seen = join(turns, [past("a", tier="L2"), past("b")])
    rows = [line for line in drawn(turns_table(seen)).splitlines() if line.strip().startswith("s1")]
    assert rows[0].split() == [
        "s1",
        "1",
        "first",
        "p0>d0",
        "1000",
        "25.0",
        "%",
        "-",
        "250",
        "-",
        "11.0",
        "12.5",
        "61.0",
        "62.5",
    ]
    figures = ["61.0", "62.5", "25.0", "%", "90.0", "%", "0"]
    session = next(line for line in drawn(sessions_table(seen)).splitlines() if line.strip().startswith("all"))
    assert session.split() == ["all", "2", "p0>d0", "x2", "L1", "x1,", "L2", "x1", *figures]


def test_counted_sorts_and_counts() -> None:
    assert counted(["b", "a", "b"]) == "a x1, b x2"


def test_the_error_of_predictions_is_told_of_the_later_half() -> None:
    def past(predicted_ms: float, actual_ms: float | None) -> PastTurn:
        return PastTurn("r", predicted=Terms(ttft_ms=predicted_ms), actual=Actual(ttft_ms=actual_ms))

    newest_last = [past(1.0, 100.0), past(1.0, 100.0), past(50.0, None), past(110.0, 100.0), past(90.0, 100.0)]
    told = prediction_error(newest_last)
    assert told["turns"] == 2
    assert told["ttft_error_p50"] == pytest.approx(0.1)
    assert told["ttft_bias_p50"] == pytest.approx(0.0)
    assert prediction_error([])["ttft_error_p50"] is None
