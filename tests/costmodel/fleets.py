"""Small fleets for tests of the policy `cost`: workers by name with what matters about each."""

from __future__ import annotations

import random

import msgspec

from costmodel.params import GUARDS, CostParams, PolicyParams
from costmodel.policies import CostPolicy
from costmodel.values import (
    Decision,
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
    Turn,
    WorkerKey,
)

PLAIN = CostParams(**GUARDS)  # the arithmetic alone
RATES = PrefillRates(10.0, 0.02)
LINK = Link(1.0, 1e6)
TURN = Turn("t", 10_000, 100)


def prefill(
    name: str,
    *,
    held: int = 0,
    queued_ms: float = 0.0,
    inflight: int = 0,
    served: int | None = None,
    rates: PrefillRates = RATES,
) -> Prefill:
    residency = Residency((Run(0, held, Tier.L1),)) if held else Residency()
    load = Load(queued_ms=queued_ms)
    return Prefill(WorkerKey(name), residency, load, rates, {}, inflight, served_turns=served)


def decode(
    name: str, *, running: int = 0, waiting: int = 0, slots: int = 0, link: Link = LINK, served: int | None = None
) -> Decode:
    load = Load(running_requests=running, waiting_requests=waiting, max_running_requests=slots)
    return Decode(WorkerKey(name), load, DecodeRates(10.0, 1.0, 1000.0), link, served_turns=served)


def pair_fleet(prefills: list[Prefill], decodes: list[Decode]) -> Fleet:
    return Fleet(tuple(prefills), tuple(decodes), 1000.0, disaggregated=True)


def unified_fleet(prefills: list[Prefill], running: dict[str, int] | None = None) -> Fleet:
    decodes = [decode(each.worker.worker_id, running=(running or {}).get(each.worker.worker_id, 0)) for each in prefills]
    return Fleet(tuple(prefills), tuple(decodes), 1000.0, disaggregated=False)


def with_guards(**changes: object) -> CostParams:
    return msgspec.structs.replace(PLAIN, **changes)


def decide(fleet: Fleet, params: CostParams = PLAIN, turn: Turn = TURN, policy: CostPolicy | None = None) -> Decision:
    return (policy or CostPolicy(PolicyParams(params))).decide(turn, fleet, 0.0, random.Random(1), explain=True)


def names(decision: Decision) -> tuple[str, str]:
    return decision.chosen.prefill.worker_id, decision.chosen.decode.worker_id
