"""A swarm at work, drawn live on a terminal, or as one line a turn where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench.swarm.plan import ThreadPlan
from bench.swarm.turns import TurnRecord
from loadback.turn_tables import ms, share


@dataclass(slots=True)
class _Row:
    planned: int
    state: str = ""
    done: int = 0
    last: TurnRecord | None = None


class SwarmDisplay:
    """A `Watcher`. Use it as a context manager around the swarm."""

    def __init__(self, plans: Sequence[ThreadPlan], console: Console) -> None:
        self._rows = {plan.name: _Row(plan.turns) for root in plans for plan in (root, *root.subagents)}
        self._console = console
        self._live = Live(get_renderable=self._table, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def on_state(self, plan: ThreadPlan, state: str) -> None:
        self._rows[plan.name].state = state

    def on_turn(self, record: TurnRecord) -> None:
        row = self._rows[record.thread]
        row.done += 1
        row.last = record
        if not self._console.is_terminal:
            self._console.print(_line(record), highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table("thread", "", "turns", "last worker", title="Sessions at work", title_justify="left")
        table.add_column("first content ms", justify="right")
        table.add_column("cached", justify="right")
        for name, row in self._rows.items():
            bar = "█" * row.done + "░" * max(0, row.planned - row.done)
            table.add_row(name, row.state, f"{bar} {row.done}/{row.planned}", *_last_cells(row.last))
        return table


def _last_cells(last: TurnRecord | None) -> tuple[str, str, str]:
    return (last.worker, ms(last.ttft_ms), share(last.cached_share)) if last else ("", "", "")


def _line(record: TurnRecord) -> str:
    head = f"{record.thread:<6} turn {record.number + 1:<3} {record.worker:<12}"
    tail = record.error or f"first content {ms(record.ttft_ms)} ms, cached {share(record.cached_share)}"
    return f"{head} {tail}"
