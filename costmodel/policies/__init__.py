"""The policies by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.params import CostParams, CutRule, PolicyParams
from costmodel.policies.base import NoCandidates, Policy
from costmodel.policies.cost import CostPolicy
from costmodel.policies.longest_prefix import LongestPrefixPolicy
from costmodel.policies.round_robin import RoundRobinPolicy
from costmodel.policies.sticky import StickyPolicy

__all__ = [
    "REGISTRY",
    "CostParams",
    "CostPolicy",
    "CutRule",
    "LongestPrefixPolicy",
    "NoCandidates",
    "Policy",
    "PolicyParams",
    "RoundRobinPolicy",
    "StickyPolicy",
]

REGISTRY: dict[str, Callable[[PolicyParams], Policy]] = {
    "cost": CostPolicy,
    "round_robin": RoundRobinPolicy,
    "longest_prefix": LongestPrefixPolicy,
    "sticky": StickyPolicy,
}
