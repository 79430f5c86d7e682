"""Workers as hypothesis draws them, for properties that hold of all."""

from __future__ import annotations

from hypothesis import strategies as st

from costmodel.values import (
    Decode,
    DecodeRates,
    Fleet,
    Link,
    Load,
    Prefill,
    PrefillRates,
    Residency,
    Run,
    Tier,
    WorkerKey,
)

RESTORE = {Tier.L2: Link(0.1, 5e7), Tier.L3: Link(0.2, 4e7), Tier.L4: Link(0.5, 1e7)}


@st.composite
def prefills(draw: st.DrawFn, number: int = 0) -> Prefill:
    runs, start = [], 0
    for tokens, tier in draw(st.lists(st.tuples(st.integers(64, 20_000), st.sampled_from(Tier)), max_size=3)):
        runs.append(Run(start, tokens, tier))
        start += tokens
    rates = PrefillRates(draw(st.floats(0, 50)), draw(st.floats(1e-3, 0.2)), draw(st.floats(0, 1e-6)))
    return Prefill(WorkerKey("p", number), Residency(tuple(runs)), Load(draw(st.floats(0, 1e5))), rates, RESTORE)


@st.composite
def decodes(draw: st.DrawFn, number: int = 0) -> Decode:
    load = Load(0.0, draw(st.integers(0, 200)), draw(st.integers(0, 50)), draw(st.integers(0, 900_000)), 1_000_000, 128)
    return Decode(WorkerKey("d", number), load, DecodeRates(draw(st.floats(1, 50)), draw(st.floats(0, 1))), Link(1.0, 4e7))


def fleet_of(some: list[Prefill], other: list[Decode]) -> Fleet:
    return Fleet(tuple(some), tuple(other), 35_136.0, disaggregated=True)
