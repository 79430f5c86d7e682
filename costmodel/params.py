"""What may be tuned about placing a turn: the objective, the arithmetic's two assumptions and one switch for every guard.

Defaults live here and nowhere else. This module reads no files; the router's configuration builds these values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import msgspec


class CutRule(StrEnum):
    """Which restore cut k a prediction assumes."""

    ENGINE = "engine"  # what a stock engine does: everything it can restore
    BEST = "best"  # the cheapest run boundary; true only where something makes the engine stop there


class Objective(StrEnum):
    """What the policy `cost` makes small."""

    E2E = "e2e"  # the whole turn
    TTFT = "ttft"  # the first token
    SLO = "slo"  # the whole turn, among the pairs whose first token is in time; the first token where none is


class CostParams(msgspec.Struct, frozen=True):
    """Tuning of the cost arithmetic and of `CostPolicy`'s guards. Raises `ValueError` naming the key that is out of range."""

    cut_rule: CutRule = CutRule.ENGINE
    overlap_rho: float = 1.0  # share of compute that hides the load-back from L2: 0 = it waits for it, 1 = layer-wise overlap
    switch_margin_ms: float = 20.0  # a thread stays where it was unless another worker beats it by more; 0 = off
    kv_pressure_fraction: float = 0.9  # KV use beyond this share of capacity costs time; 0 = off
    waiting_limit: int = 0  # workers with more waiting requests are passed over while another has fewer; 0 = off
    common_prefix_discount: float = 1.0  # share of a new thread's common prefix that no holder gets credit for; 0 = off
    never_used_first: bool = True  # cold turns rotate over near ties, least recently cold-started first
    staleness_half_life_ms: float = 900_000.0  # residency this old is believed with probability one half; 0 = off
    near_tie_ms: float = 5.0  # costs this close to the best count as equal
    softmax_temperature: float = 0.0  # draw among near ties, range-normalised; 0 = always the cheapest
    ramp_turns: int = 8  # until it has answered so many, a worker gets at most one turn more than that at once; 0 = off
    replication_weight: float = 1.0  # share of the wait at a hot prefix's holder that a second copy may cost; 0 = off
    eviction_discount: float = 0.0  # share of the chance that a prefix is evicted before its turn that counts; 0 = off
    displacement_weight: float = 1.0  # compute counts this times the reuse share more, for the KV that it evicts; 0 = off
    objective: Objective = Objective.E2E

    def __post_init__(self) -> None:
        for key in (
            "switch_margin_ms",
            "displacement_weight",
            "ramp_turns",
            "waiting_limit",
            "staleness_half_life_ms",
            "near_tie_ms",
            "softmax_temperature",
        ):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be 0 (off) or positive and finite, not {getattr(self, key)}")
        for key in ("overlap_rho", "kv_pressure_fraction", "common_prefix_discount", "replication_weight", "eviction_discount"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key} must lie between 0 and 1, not {getattr(self, key)}")


GUARDS: Mapping[str, float | bool] = {
    "switch_margin_ms": 0.0,
    "kv_pressure_fraction": 0.0,
    "waiting_limit": 0,
    "common_prefix_discount": 0.0,
    "never_used_first": False,
    "staleness_half_life_ms": 0.0,
    "near_tie_ms": 0.0,
    "softmax_temperature": 0.0,
    "ramp_turns": 0,
    "replication_weight": 0.0,
    "displacement_weight": 0.0,
    "eviction_discount": 0.0,
}
"""Every guard with the value that switches it off; the other fields of `CostParams` say how costs are reckoned."""


class PolicyParams(msgspec.Struct, frozen=True):
    """What every policy's constructor gets. All predict with `cost`; only the policy `cost` obeys its guards."""

    cost: CostParams = CostParams()
