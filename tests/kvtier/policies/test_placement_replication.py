"""Where pages go and which deserve copies, over plain values."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from kvtier.page.key import PageKey
from kvtier.policies.placement import NodeRoom, PlaceLocal, PlacementPolicy, PlaceMostFree, PlaceSpread
from kvtier.policies.replication import Candidate, HotReplicas, NoReplicas

KEY = PageKey(b"k" * 48)
NODES = (NodeRoom("a", 10, 100), NodeRoom("b", 60, 100), NodeRoom("c", 65, 1000))


def keys(count: int) -> list[PageKey]:
    return [PageKey(number.to_bytes(48, "little")) for number in range(count)]


def test_local_stays() -> None:
    assert PlaceLocal().place(KEY, 5, "a", NODES) == "a"


def test_most_free_goes_by_share_and_needs_a_reason() -> None:
    assert PlaceMostFree().place(KEY, 5, "a", NODES) == "b"
    assert PlaceMostFree(margin_share=0.6).place(KEY, 5, "a", NODES) == "a"
    assert PlaceMostFree().place(KEY, 62, "a", NODES) == "a"  # only c has room, and is fuller
    assert PlaceMostFree().place(KEY, 500, "a", NODES) == "a"


def test_spread_sends_a_page_to_one_node_whoever_asks() -> None:
    nodes = [NodeRoom(name, 100, 100) for name in "abcd"]
    chosen = {key: PlaceSpread().place(key, 1, "a", nodes) for key in keys(400)}
    assert all(PlaceSpread().place(key, 1, "d", nodes[::-1]) == node for key, node in chosen.items())
    assert min(Counter(chosen.values()).values()) > 60
    fewer = {key: PlaceSpread().place(key, 1, "a", nodes[:3]) for key in chosen}
    assert all(fewer[key] == node for key, node in chosen.items() if node != "d")  # only d's pages move
    assert PlaceSpread().place(KEY, 1000, "a", nodes) == "a"


def test_replicas_are_the_hottest_under_the_budget() -> None:
    hot, warm, cold, copied = keys(4)
    candidates = [
        Candidate(warm, hits=6, length=50),
        Candidate(cold, hits=1, length=1),
        Candidate(hot, hits=9, length=60),
        Candidate(copied, hits=50, length=1, copies=2),
    ]
    assert HotReplicas(budget_bytes=110).choose(candidates) == [hot, warm]
    assert HotReplicas(budget_bytes=109).choose(candidates) == [hot]
    assert HotReplicas(copies=3, budget_bytes=70).choose(candidates) == [copied, hot]
    assert NoReplicas().choose(candidates) == []


def test_placement_is_chosen_by_name() -> None:
    assert msgspec.convert({"policy": "most_free", "margin_share": 0.2}, PlacementPolicy) == PlaceMostFree(margin_share=0.2)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"policy": "nearest"}, PlacementPolicy)
