"""The index counts what sources tell of their tiers: stores and removals, whatever was held."""

from __future__ import annotations

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import AllCleared, BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex

P0, P1 = WorkerKey("p0"), WorkerKey("p1")


def test_stores_and_removals_are_counted_by_source_and_tier() -> None:
    index = BlockIndex()
    assert index.churn(P0) is None
    index.apply(P0, BlocksStored((1, 2, 3), None, Tier.L1, 16), 0)
    index.apply(P0, BlocksStored((1, 2), None, Tier.L2, 16), 0)
    index.apply(P0, BlocksRemoved((1,), Tier.L1), 0)
    index.apply(P0, BlocksRemoved((2,), Tier.L2), 0)
    index.apply(P1, BlocksStored((1,), None, Tier.L1, 16), 0)
    assert (index.churn(P0), index.churn(P0, Tier.L2)) == ((3, 1), (2, 1))
    index.apply(P0, BlocksRemoved((2, 3), None), 0)
    assert (index.churn(P0), index.churn(P0, Tier.L2)) == ((3, 3), (2, 3)), "untagged removals are of every tier"
    assert (index.churn(P1), index.churn(P1, Tier.L2)) == ((1, 0), None)


def test_counters_outlive_a_clear_but_not_the_source() -> None:
    index = BlockIndex()
    index.apply(P0, BlocksStored((1,), None, Tier.L1, 16), 0)
    index.apply(P0, AllCleared(), 0)
    assert index.churn(P0) == (1, 0)
    index.drop_source(P0)
    assert index.churn(P0) is None
