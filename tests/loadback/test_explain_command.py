"""The table of a dry run: cheapest first, the winner marked, its reason told."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from loadback.admin_api import Candidate, Explained, Terms
from loadback.explain_command import deadline_line, print_explained

STAYED = Candidate("p0>d0", 640, "L1", Terms(queue_ms=3.0, compute_ms=9.5, ttft_ms=12.5, total_ms=50.25))
CHEAPER = Candidate("p1>d0", 0, None, Terms(compute_ms=12.0, ttft_ms=12.0, total_ms=48.0))
ANSWER = Explained(
    worker="p0>d0",
    reason="stays: p1>d0 would gain 2.2 ms, below the margin",
    policy="cost",
    chosen=STAYED,
    others=[CHEAPER],
    model="tiny",
    pool="main",
    thread="t-1",
    kind="continued",
    prompt_tokens=800,
)


def printed(answer: Explained = ANSWER) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        print_explained(answer, console)
    return capture.get()


def test_every_term_of_every_pair_is_shown_cheapest_first() -> None:
    rows = [" ".join(line.replace("│", " ").split()) for line in printed().splitlines() if "p0>d0" in line or "p1>d0" in line]
    assert rows[0] == "p1>d0 0 - 0.00 0.00 0.00 0.00 12.00 0.00 0.00 0.00 12.00 48.00"
    assert rows[1] == "> p0>d0 640 L1 0.00 3.00 0.00 0.00 9.50 0.00 0.00 0.00 12.50 50.25"


def test_the_sentence_and_the_thread_are_shown() -> None:
    assert "p0>d0 by policy cost: stays: p1>d0 would gain 2.2 ms, below the margin" in printed()
    assert "thread t-1 (continued), later call, about 800 prompt tokens (estimated)" in printed()
    counted = msgspec.structs.replace(ANSWER, prompt_tokens_exact=True)
    assert "thread t-1 (continued), later call, 800 prompt tokens\n" in printed(counted)


def test_who_was_not_weighed_is_named_with_the_reason() -> None:
    assert "not weighed" not in printed()
    lost = msgspec.structs.replace(ANSWER, left_out={"p2": "down", "d1": "breaker open"})
    assert "not weighed: p2 (down), d1 (breaker open)" in printed(lost)


def test_names_with_brackets_are_told_as_they_are() -> None:
    odd = msgspec.structs.replace(STAYED, worker="p[red]>d[/x]")
    text = printed(msgspec.structs.replace(ANSWER, model="m[/bold]", chosen=odd, worker=odd.worker, left_out={"q[/]": "down"}))
    assert text.count("p[red]>d[/x]") == 2
    assert "model m[/bold] on pool main" in text
    assert "q[/] (down)" in text


@pytest.mark.parametrize(
    ("deadline_ms", "shed", "told"),
    [
        (20.0, True, "class fast: first token due within 20 ms, predicted after 12.5 ms, in time"),
        (5.0, False, "class fast: first token due within 5 ms, predicted after 12.5 ms, late"),
        (5.0, True, "class fast: first token due within 5 ms, predicted after 12.5 ms, refused: it would be late"),
    ],
)
def test_the_deadline_is_told_and_whether_it_is_kept(deadline_ms: float, shed: bool, told: str) -> None:
    assert deadline_line(msgspec.structs.replace(ANSWER, due_class="fast", deadline_ms=deadline_ms, shed=shed)) == told


def test_where_deadlines_do_not_count_it_says_so() -> None:
    assert "no deadline: policy.objective is not slo" in printed()
