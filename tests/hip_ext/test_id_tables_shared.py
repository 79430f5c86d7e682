"""One suite for every table of page ids: against a dictionary, also where ids crowd on few places, come twice, or are zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvtier.copy.native import native_module
from kvtier.store.ids import PageIds, PortableIds, ids_of

native = native_module()
TABLES: list[type[PageIds]] = [PortableIds, *([native.IdTable] if native else [])]

# few different ones, so that they meet; multiples of 2^32, of which every table has many on one place; both signs
NAMES = [
    *(number.to_bytes(8, "little") for number in range(40)),
    *(bytes(4) + number.to_bytes(4, "big") for number in range(1, 200)),
]
batches = st.lists(st.sampled_from(NAMES), max_size=120)
one = st.sampled_from(NAMES)


def joined(names: Sequence[bytes]) -> bytes:
    return b"".join(name + bytes(range(24)) for name in names)


def number_of(name: bytes) -> int:
    return ids_of(joined([name]))[0]


class TableMachine(RuleBasedStateMachine):
    make: Callable[[], PageIds]

    @initialize()
    def start(self) -> None:
        self.table = type(self).make()
        self.model: dict[bytes, int] = {}

    @rule(name=one, number=st.integers(1, 1 << 53))
    def put(self, name: bytes, number: int) -> None:
        self.table.put(number_of(name), number)
        self.model[name] = number

    @rule(name=one)
    def drop(self, name: bytes) -> None:
        assert self.table.drop(number_of(name)) == (self.model.pop(name, None) is not None)

    @rule(names=batches, first=st.integers(1, 1000), step=st.integers(0, 1))
    def put_all(self, names: list[bytes], first: int, step: int) -> None:
        self.table.put_all(joined(names), first, step)
        self.model.update((name, first + index * step) for index, name in enumerate(names))

    @rule(names=batches)
    def drop_all(self, names: list[bytes]) -> None:
        self.table.drop_all(joined(names))
        for name in names:
            self.model.pop(name, None)

    @rule(names=batches)
    def look(self, names: list[bytes]) -> None:
        assert list(self.table.get_all(joined(names))) == [self.model.get(name, 0) for name in names]
        different = len(set(names)) == len(names)
        assert self.table.fresh(joined(names)) == (different and self.model.keys().isdisjoint(names))

    @rule(names=batches, wrong=st.integers(1, 31))
    def refuse(self, names: list[bytes], wrong: int) -> None:
        broken = joined(names) + bytes(wrong)
        table = self.table
        for call in (table.fresh, table.get_all, table.drop_all, lambda digests: table.put_all(digests, 1, 0)):
            with pytest.raises(ValueError, match="multiple"):
                call(broken)
        for first, step in ((0, 0), (-1, 1), (1, -1)):
            with pytest.raises(ValueError, match="above 0"):
                self.table.put_all(joined(names), first, step)
        with pytest.raises(ValueError, match="above 0"):
            self.table.put(1, 0)

    @invariant()
    def it_holds_what_it_should(self) -> None:
        assert len(self.table) == len(self.model)
        assert [self.table.get(number_of(name)) for name in NAMES] == [self.model.get(name, 0) for name in NAMES]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_a_dictionary(table: type[PageIds]) -> None:
    machine = type("Machine", (TableMachine,), {"make": staticmethod(table)})
    case = machine.TestCase
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    case("runTest").runTest()
