"""The outbox against the plain sequence of what was done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.values import Tier, WorkerKey
from kvtier.shared_index.holdings import REFUTED, Change, assumed, removed, stored
from kvtier.shared_index.outbox import Outbox, Parcel

SOURCES = (WorkerKey("a"), WorkerKey("b"))
CHANGES = st.sampled_from([*map(stored, Tier), *map(removed, (*Tier, None)), *map(assumed, Tier), REFUTED])
steps = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.sampled_from(("note", "note", "note", "clear", "drop", "deliver", "fail")), CHANGES,
              st.sets(st.integers(0, 4), min_size=1)),
    max_size=40,
)  # fmt: skip
Held = dict[tuple[WorkerKey, int], int]


def deliver(held: Held, parcel: Parcel) -> None:
    for source in parcel.cleared:
        forget(held, source)
    for source, changes in parcel.changes.items():
        assert isinstance(source, WorkerKey)
        for block, change in changes.items():
            change_one(held, source, block, change)
    for source in parcel.dropped:
        forget(held, source)


def change_one(held: Held, source: WorkerKey, block: int, change: Change) -> None:
    held[source, block] = held.get((source, block), 0) & change.keep | change.put


def forget(held: Held, source: object) -> None:
    for key in [key for key in held if key[0] == source]:
        del held[key]


def visible(held: Held) -> Held:
    return {key: tiers for key, tiers in held.items() if tiers}


@pytest.mark.slow
@given(steps=steps)
def test_what_is_delivered_amounts_to_what_was_done(
    steps: list[tuple[WorkerKey, str, Change, set[int]]],
) -> None:
    outbox, there, here = Outbox(), Held(), Held()
    for source, action, change, blocks in steps:
        if action == "note":
            outbox.note(source, blocks, change)
            for block in blocks:
                change_one(here, source, block, change)
        elif action in ("clear", "drop"):
            (outbox.clear if action == "clear" else outbox.drop)(source)
            forget(here, source)
        elif action == "deliver":
            deliver(there, outbox.take())
            assert visible(there) == visible(here)
        else:
            parcel = outbox.take()
            outbox.note(SOURCES[0], blocks, change)
            for block in blocks:
                change_one(here, SOURCES[0], block, change)
            outbox.give_back(parcel)
    deliver(there, outbox.take())
    assert visible(there) == visible(here)
    assert outbox.take().empty


def test_an_overflow_gives_up_what_others_would_know() -> None:
    outbox = Outbox(max_changes=10)
    outbox.note(SOURCES[0], range(8), assumed(Tier.L1))
    outbox.note(SOURCES[1], range(8), assumed(Tier.L1))
    assert (outbox.overflows, len(outbox)) == (1, 0)
    outbox.note(SOURCES[0], range(3), assumed(Tier.L1))
    parcel = outbox.take()
    assert parcel.cleared == set(SOURCES)
    assert {source: len(changes) for source, changes in parcel.changes.items()} == {SOURCES[0]: 3}
