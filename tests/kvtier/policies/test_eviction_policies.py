"""Who goes first under each policy, and that a touch never lowers a page's worth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from kvtier.page.kind import PageKind
from kvtier.policies.admission import AdmitAll, AdmitNone, AdmitReused
from kvtier.policies.eviction import EvictionPolicy, LfuDecay, Lru, ReusePerByte, SemanticClasses
from kvtier.store.heat import NEVER, hits_at, warmed

HALF_LIFE_MS = 1000.0


@dataclass(frozen=True)
class Use:
    kind: PageKind = PageKind.USER_QUERY
    depth: int = 0
    tokens: int = 16
    length: int = 4096
    hits: int = 0
    heat: float = 0.0
    last_ms: float = 0.0

    def read_at(self, *times_ms: float) -> Use:
        use = self
        for time_ms in times_ms:
            heat = warmed(use.heat, time_ms, HALF_LIFE_MS)
            use = replace(use, hits=use.hits + 1, heat=heat, last_ms=max(use.last_ms, time_ms))
        return use


def order(policy: EvictionPolicy, **uses: Use) -> list[str]:
    """First evicted first."""
    return sorted(uses, key=lambda name: policy.worth(uses[name]))


def test_lru_takes_the_oldest_then_the_deepest() -> None:
    assert order(Lru(), new=Use(last_ms=2), root=Use(last_ms=1), leaf=Use(last_ms=1, depth=9)) == ["leaf", "root", "new"]


def test_lfu_forgets_old_hits() -> None:
    fresh = Use().read_at(10_000, 10_100)
    stale = Use().read_at(*range(0, 500, 50))  # ten hits, ten half-lives ago
    assert order(LfuDecay(), fresh=fresh, stale=stale, never=Use(heat=NEVER)) == ["never", "stale", "fresh"]
    assert order(LfuDecay(), two=Use().read_at(0, 1), three=Use().read_at(0, 1, 2)) == ["two", "three"]


def test_reuse_per_byte_weighs_what_a_page_saves() -> None:
    policy = ReusePerByte(ms_per_token=0.01, ms_per_token2=1e-6)
    deep, shallow = Use(depth=2000), Use(depth=1)
    assert order(policy, deep=deep, shallow=shallow) == ["shallow", "deep"]  # late tokens attend to more, and cost more
    assert order(policy, wide=Use(length=65_536), narrow=Use()) == ["wide", "narrow"]
    assert order(policy, hot=Use().read_at(0, 1, 2, 3), deep=Use(depth=1)) == ["deep", "hot"]


def test_semantic_classes_go_in_sutradharas_order() -> None:
    uses = {kind.name: Use(kind=kind, last_ms=-kind) for kind in PageKind}
    assert order(SemanticClasses(), **uses) == ["RESPONSE", "TOOL_OUTPUT", "USER_QUERY", "SYSTEM_PROMPT", "PARTIAL_PREFILL"]
    query = {"old": Use(), "deep": Use(last_ms=1, depth=5), "new": Use(last_ms=1)}
    assert order(SemanticClasses(), **query) == ["old", "deep", "new"]


@given(
    st.sampled_from([Lru(), LfuDecay(), ReusePerByte(), SemanticClasses()]),
    st.lists(st.floats(0, 1e9), max_size=6).map(sorted),
    st.floats(0, 1e9),
)
def test_a_touch_never_lowers_the_worth(policy: EvictionPolicy, times_ms: list[float], later_ms: float) -> None:
    before = Use(depth=3).read_at(*times_ms)
    assert policy.worth(before.read_at(before.last_ms + later_ms)) >= policy.worth(before)


@given(st.lists(st.floats(0, 20_000), min_size=1, max_size=20).map(sorted), st.floats(0, 5000))
def test_heat_is_the_decayed_count(times_ms: list[float], later_ms: float) -> None:
    now_ms = times_ms[-1] + later_ms
    heat = NEVER
    for time_ms in times_ms:
        heat = warmed(heat, time_ms, HALF_LIFE_MS)
    expected = sum(0.5 ** ((now_ms - time_ms) / HALF_LIFE_MS) for time_ms in times_ms)
    assert hits_at(heat, now_ms, HALF_LIFE_MS) == pytest.approx(expected, rel=1e-6)


def test_policies_are_chosen_by_name() -> None:
    for name, kind in (("lru", Lru), ("lfu_decay", LfuDecay), ("reuse_per_byte", ReusePerByte), ("semantic", SemanticClasses)):
        assert isinstance(msgspec.convert({"policy": name}, EvictionPolicy), kind)
    with pytest.raises(msgspec.ValidationError, match="size"):
        msgspec.convert({"policy": "lru", "size": 3}, EvictionPolicy)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"policy": "reuse_per_byte", "ms_per_token": 0}, EvictionPolicy)


def test_admission() -> None:
    assert AdmitAll().admits(Use())
    assert not AdmitNone().admits(Use(hits=9))
    assert [AdmitReused(min_hits=2).admits(Use(hits=hits)) for hits in (1, 2)] == [False, True]
