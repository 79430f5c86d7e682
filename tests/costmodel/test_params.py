"""What may be tuned: which fields are guards, how each is switched off, and what is refused."""

from __future__ import annotations

import math

import msgspec
import pytest

from costmodel.params import GUARDS, CostParams

ASSUMPTIONS = {"objective", "cut_rule", "overlap_rho"}


def test_every_field_is_a_guard_with_an_off_value_or_an_assumption() -> None:
    assert set(GUARDS) | ASSUMPTIONS == set(CostParams.__struct_fields__)
    assert not set(GUARDS) & ASSUMPTIONS


def test_all_guards_can_be_off_at_once() -> None:
    off = CostParams(**GUARDS)
    assert {key: getattr(off, key) for key in GUARDS} == dict(GUARDS)


@pytest.mark.parametrize("key", [key for key, off in GUARDS.items() if not isinstance(off, bool)])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_nonsense_is_refused_by_its_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        msgspec.structs.replace(CostParams(), **{key: value})
