"""Which page goes first.

A policy answers with a page's worth; the lowest goes first. The answer may change only when the page is touched or tagged, and
a touch may only raise it: that lets a heap hold old answers and correct them as they surface. Clock-driven ageing is therefore
expressed in referred time (`kvtier.store.heat`). At equal worth the deepest page goes first, so that a prompt loses its tail.
"""

from __future__ import annotations

from math import log2

import msgspec

from kvtier.policies.use import PageUse
from kvtier.settings.ranges import Amount

Worth = tuple[float, float, float]


class Lru(msgspec.Struct, frozen=True, tag="lru", tag_field="policy", forbid_unknown_fields=True):
    """Least recently used."""

    def worth(self, use: PageUse) -> Worth:
        return (use.last_ms, -use.depth, 0.0)


class LfuDecay(msgspec.Struct, frozen=True, tag="lfu_decay", tag_field="policy", forbid_unknown_fields=True):
    """Least frequently used, hits halving every half-life."""

    def worth(self, use: PageUse) -> Worth:
        return (use.heat, -use.depth, use.last_ms)


class ReusePerByte(msgspec.Struct, frozen=True, tag="reuse_per_byte", tag_field="policy", forbid_unknown_fields=True):
    """Reuse probability times the compute it saves, per byte: decayed hits x recompute_ms / length, compared as logarithms.

    Recomputing a page of T tokens behind d pages costs b*T + c*(((d+1)T)^2 - (dT)^2), the cost model's curve.
    """

    ms_per_token: Amount = 0.02
    ms_per_token2: Amount = 1e-7

    def __post_init__(self) -> None:
        if self.ms_per_token <= 0 or self.ms_per_token2 < 0:
            raise ValueError("ms_per_token must be positive and ms_per_token2 not negative")

    def worth(self, use: PageUse) -> Worth:
        tokens = max(use.tokens, 1)
        cost_ms = tokens * (self.ms_per_token + self.ms_per_token2 * tokens * (2 * use.depth + 1))
        return (use.heat + log2(cost_ms / use.length), -use.depth, use.last_ms)


class SemanticClasses(msgspec.Struct, frozen=True, tag="semantic", tag_field="policy", forbid_unknown_fields=True):
    """Sutradhara's classes from RESPONSE to PARTIAL_PREFILL; within one, least recently used, then deepest."""

    def worth(self, use: PageUse) -> Worth:
        return (float(use.kind), use.last_ms, -use.depth)


EvictionPolicy = Lru | LfuDecay | ReusePerByte | SemanticClasses
