"""Which numbers a request may carry. Said once for every field of every request, also of those that are added later."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, get_args, get_origin

import msgspec

from kvtier.page.space import REPLICATED
from kvtier.wire.messages import Request

MAX_COUNT = 1 << 53  # with the pages of a batch added it still fits a column, and a float names it exactly
MAX_MS = 1e12  # 31 years
_LOWEST = {"tp_rank": REPLICATED}  # else 0
_HIGHEST = {"port": 65_535}

Check = Callable[[Any], None]


def check_numbers(request: Request) -> None:
    """Raises ValueError for a number that is not finite, negative, or larger than any can be."""
    for check in _CHECKS[type(request)]:
        check(request)


def _checks(kind: type[msgspec.Struct]) -> tuple[Check, ...]:
    fields = msgspec.structs.fields(kind)
    return tuple(check for field in fields if (check := _check(field.name, field.type)) is not None)


def _check(name: str, kind: Any) -> Check | None:
    """For one field; None for one without numbers."""
    if kind is int or kind is float:
        return _within(name, _LOWEST.get(name, 0), _HIGHEST.get(name, MAX_COUNT if kind is int else MAX_MS))
    if get_origin(kind) is list:
        return _inside(name, *get_args(kind), many=True)
    return _inside(name, kind) if issubclass(kind, msgspec.Struct) else None


def _inside(name: str, kind: type[msgspec.Struct], *, many: bool = False) -> Check:
    get, checks = attrgetter(name), _checks(kind)

    def check(owner: Any) -> None:
        for each in get(owner) if many else (get(owner),):
            for inner in checks:
                inner(each)

    return check


def _within(name: str, lowest: float, highest: float) -> Check:
    get = attrgetter(name)

    def check(owner: Any) -> None:
        if not lowest <= get(owner) <= highest:  # neither is NaN
            raise ValueError(f"{name} is from {lowest:g} to {highest:g}, not {get(owner)}")

    return check


_CHECKS = {kind: _checks(kind) for kind in get_args(Request)}
