"""Which numbers an engine may tell: counts, ranks, ports. Pure; knows no engine.

A broken engine, or what answers in its place, tells any number. Nothing behind this reading has to doubt one: counts are within
what a float holds exactly, ranks and ports are those that can exist.
"""

from __future__ import annotations

MAX_COUNT = 1 << 53
MAX_RANKS = 1024
_MAX_PORT = 65_535
_RANK_DIGITS = 4


def count(value: float | None) -> int:
    """Into 0..`MAX_COUNT`; 0 for what is no number."""
    if value is None or value != value:  # not a number; `math.isnan` refuses large integers
        return 0
    return int(min(max(value, 0), MAX_COUNT))


def total(value: int | None) -> int | None:
    """A cumulative counter, or None where it cannot be one: a clamped counter would look like a jump."""
    return value if value is not None and 0 <= value <= MAX_COUNT else None


def ranks(value: int | None) -> int:
    """How many data-parallel ranks there are: at least one."""
    return min(max(value or 1, 1), MAX_RANKS)


def is_rank(value: int) -> bool:
    return 0 <= value < MAX_RANKS


def rank_of(label: str | None) -> int | None:
    """A metric's label as a rank. Without the label it is rank 0's; None where it is no rank."""
    if not label:
        return 0
    rank = int(label) if label.isascii() and label.isdigit() and len(label) <= _RANK_DIGITS else -1
    return rank if is_rank(rank) else None


def is_port(value: int | None) -> bool:
    return value is not None and 0 < value <= _MAX_PORT
