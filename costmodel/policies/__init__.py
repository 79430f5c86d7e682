"""The policies by the names that configurations use: the product's own and faithful versions of its rivals'."""

from __future__ import annotations

from collections.abc import Callable

from costmodel.params import PolicyParams
from costmodel.policies.aibrix import AibrixPolicy
from costmodel.policies.base import NoCandidates, Policy
from costmodel.policies.consistent_hash import ConsistentHashPolicy
from costmodel.policies.cost import CostPolicy
from costmodel.policies.dynamo import DynamoPolicy
from costmodel.policies.infera import InferaPolicy
from costmodel.policies.least_load import LeastLoadPolicy
from costmodel.policies.llm_d import LlmDPolicy
from costmodel.policies.longest_prefix import LongestPrefixPolicy
from costmodel.policies.mooncake import MooncakePolicy
from costmodel.policies.power_of_two import PowerOfTwoPolicy
from costmodel.policies.round_robin import RoundRobinPolicy
from costmodel.policies.sgl_router import SglRouterPolicy
from costmodel.policies.sglang_cache_aware import SglangCacheAwarePolicy
from costmodel.policies.smg_cache_aware import SmgCacheAwarePolicy
from costmodel.policies.sticky import StickyPolicy
from costmodel.policies.umbp_rfc import UmbpRfcPolicy

__all__ = ["REGISTRY", "CostPolicy", "NoCandidates", "Policy"]

REGISTRY: dict[str, Callable[[PolicyParams], Policy]] = {
    "cost": CostPolicy,
    "round_robin": RoundRobinPolicy,
    "least_load": LeastLoadPolicy,
    "power_of_two": PowerOfTwoPolicy,
    "sticky": StickyPolicy,
    "consistent_hash": ConsistentHashPolicy,
    "smg_cache_aware": SmgCacheAwarePolicy,
    "sglang_cache_aware": SglangCacheAwarePolicy,
    "sgl_router": SglRouterPolicy,
    "dynamo": DynamoPolicy,
    "infera": InferaPolicy,
    "llm_d": LlmDPolicy,
    "aibrix": AibrixPolicy,
    "mooncake": MooncakePolicy,
    "longest_prefix": LongestPrefixPolicy,
    "umbp_rfc": UmbpRfcPolicy,
}
