"""Numbers that no request may carry, in every field of every request."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import inf, nan
from typing import Any, get_args, get_origin

import msgspec
import pytest

from kvtier.page.space import PageSpace, Shard
from kvtier.wire import messages
from kvtier.wire.bounds import MAX_COUNT, MAX_MS, check_numbers

WRONG = {int: (-2, -(2**63), MAX_COUNT + 1, 2**63 - 1, 2**64 - 1), float: (-1e-9, nan, inf, -inf, 1e300)}
RIGHT = {int: (0, 65_535), float: (0.0, MAX_MS)}
NAMED_OTHERWISE = (Shard, PageSpace)  # which refuse most numbers themselves


def sample(kind: Any) -> Any:
    if get_origin(kind) is list:
        return [sample(each) for each in get_args(kind)]
    if kind is PageSpace:
        return PageSpace("m", "bf16", "page_first", 16)
    if issubclass(kind, msgspec.Struct):
        return kind(*(sample(field.type) for field in msgspec.structs.fields(kind)))
    return next(iter(kind)) if issubclass(kind, Enum) else kind()


def altered(value: Any, numbers: dict[type, tuple[Any, ...]]) -> Iterator[Any]:
    """Copies of a message with one number in it exchanged."""
    for field in msgspec.structs.fields(value):
        now = getattr(value, field.name)
        if isinstance(now, list):
            others: Any = ([each] for item in now for each in altered(item, numbers))
        elif isinstance(now, msgspec.Struct):
            others = () if isinstance(now, NAMED_OTHERWISE) else altered(now, numbers)
        else:
            others = numbers.get(field.type, ())
        for other in others:
            yield msgspec.structs.replace(value, **{field.name: other})


@pytest.mark.parametrize("kind", get_args(messages.Request))
def test_every_number_of_a_request_is_bounded(kind: type[messages.Message]) -> None:
    check_numbers(sample(kind))
    for request in altered(sample(kind), RIGHT):
        check_numbers(request)
    for request in altered(sample(kind), WRONG):
        with pytest.raises(ValueError, match="is from 0 to"):
            check_numbers(request)


def test_numbers_within_what_a_request_holds_count() -> None:
    assert len(list(altered(sample(messages.Stage), WRONG))) == 5 * (1 + 1 + 1 + 1 + 1)
    check_numbers(messages.Release(MAX_COUNT, MAX_COUNT, MAX_MS))
    with pytest.raises(ValueError, match="port"):
        check_numbers(messages.Stage(0, b"", [messages.Peer("b", "b", 65_536)], 1.0))
    with pytest.raises(ValueError, match="page_tokens"):
        check_numbers(messages.Attach(PageSpace("m", "bf16", "page_first", 1 << 60)))
    check_numbers(messages.Attach(PageSpace("m", "bf16", "page_first", 16, shard=Shard(-1, 1))))
