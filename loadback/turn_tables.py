"""The tables of a demo: every turn, then every session, as clients and gateway measured them. It draws and measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from bench.swarm.turns import TurnRecord, hit_rate, percentile
from loadback.admin_api import PastTurn

NONE = "-"


class SeenTurn:
    """One turn from both sides: as the client saw it, and, where it is still known, as the gateway did."""

    def __init__(self, client: TurnRecord, gateway: PastTurn | None) -> None:
        self.client = client
        self.gateway = gateway

    @property
    def tier(self) -> str | None:
        return self.gateway.hit_tier if self.gateway else None

    @property
    def by_tier(self) -> dict[str, int]:
        """Prompt tokens."""
        return (self.gateway.actual.cached_by_tier if self.gateway else None) or {}

    @property
    def predicted_ttft_ms(self) -> float | None:
        return self.gateway.predicted.ttft_ms if self.gateway and self.gateway.predicted else None

    @property
    def predicted_total_ms(self) -> float | None:
        return self.gateway.predicted.total_ms if self.gateway and self.gateway.predicted else self.client.predicted_ms

    @property
    def actual_ttft_ms(self) -> float | None:
        return self.gateway.actual.ttft_ms if self.gateway else self.client.ttft_ms

    @property
    def actual_total_ms(self) -> float | None:
        return self.gateway.actual.total_ms if self.gateway else self.client.total_ms


def join(turns: Iterable[TurnRecord], past: Iterable[PastTurn]) -> list[SeenTurn]:
    """By request id, ordered by thread and number."""
    known = {turn.id: turn for turn in past}
    ordered = sorted(turns, key=lambda turn: (turn.session, turn.thread, turn.number))
    return [SeenTurn(turn, known.get(turn.request_id)) for turn in ordered]


def turns_table(seen: Sequence[SeenTurn]) -> Table:
    table = Table("thread", "turn", "call", "worker", "prompt", "cached", title="Turns", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("from tier\nL1", "\nL2", "\nL3"):
        table.add_column(heading, justify="right")
    for heading in ("first event\npredicted", "ms\nactual", "whole turn\npredicted", "ms\nactual"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for before, turn in zip([None, *seen], seen, strict=False):
        if before and before.client.thread != turn.client.thread:
            table.add_section()
        table.add_row(*_turn_cells(turn))
    return table


def _turn_cells(turn: SeenTurn) -> list[str]:
    client = turn.client
    return [
        client.thread,
        str(client.number + 1),
        "first" if client.first_call else "later",
        escape(client.worker or NONE),
        str(client.prompt_tokens),
        share(client.cached_share),
        *(str(turn.by_tier.get(tier, 0) or NONE) for tier in ("L1", "L2", "L3")),
        ms(turn.predicted_ttft_ms),
        ms(turn.actual_ttft_ms),
        ms(turn.predicted_total_ms),
        ms(turn.actual_total_ms),
        f"[red]{escape(client.error[:60])}[/red]" if client.error else "",
    ]


def sessions_table(seen: Sequence[SeenTurn]) -> Table:
    """One row a session, subagents included, and one for all."""
    table = Table("session", "turns", "workers", "tier of hit", title="Sessions", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("predicted ms\np50", "actual ms\np50", "first-call\nhit", "later-call\nhit", "errors"):
        table.add_column(heading, justify="right")
    for session in dict.fromkeys(turn.client.session for turn in seen):
        table.add_row(session, *_session_cells([turn for turn in seen if turn.client.session == session]))
    table.add_section()
    table.add_row("all", *_session_cells(seen))
    return table


def _session_cells(seen: Sequence[SeenTurn]) -> list[str]:
    clients = [turn.client for turn in seen]
    return [
        str(len(seen)),
        escape(counted(client.worker or NONE for client in clients)),
        counted(turn.tier or "miss" for turn in seen),
        ms(percentile([turn.predicted_total_ms for turn in seen if turn.predicted_total_ms is not None], 0.5)),
        ms(percentile([turn.actual_total_ms for turn in seen if turn.actual_total_ms is not None], 0.5)),
        share(hit_rate([client for client in clients if client.first_call])),
        share(hit_rate([client for client in clients if not client.first_call])),
        str(sum(client.error is not None for client in clients)),
    ]


def counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word} x{count}" for word, count in sorted(Counter(words).items()))


def ms(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"
