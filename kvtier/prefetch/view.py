"""What the planner may ask while it plans: the caller's picture of workers, links and nodes at this moment."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple, Protocol

import msgspec

from costmodel.params import CutRule
from costmodel.values import Link, PrefillRates, Tier, WorkerKey


class Place(NamedTuple):
    """A copy that agents can read: L3 or L4 of a node."""

    node: str
    tier: Tier


class Path(NamedTuple):
    """One hop between agents; source == target reads the node's own SSD."""

    source: str
    target: str


class Extent(msgspec.Struct, frozen=True, gc=False):
    """`tokens` of a prompt from `start` on, alike in where they lie. `engine`: L1 or L2 of the target worker itself."""

    start: int
    tokens: int
    places: tuple[Place, ...] = ()
    engine: Tier | None = None


class Target(msgspec.Struct, frozen=True):
    """Where a subject's next turn would be prefilled if it came now, with the prompt as that worker would find it."""

    worker: WorkerKey
    node: str
    prompt_tokens: int  # as expected of the next turn; at least one more than the extents cover
    named_tokens: int  # of the prompt as it was last asked, in whole pages
    extents: tuple[Extent, ...]  # contiguous from token 0; ends where no copy is known
    rates: PrefillRates
    restore: Mapping[Tier, Link]  # the engine's own legs: L2 to L1, L3 of its node to L2; an absent tier cannot be restored
    kv_bytes_per_token: float
    sized: bool = True  # somebody has told that; else it is what another model's KV takes
    page_tokens: int = 1
    queue_ms: float = 0.0  # before a turn that is sent now would begin
    waiting_turns: int = 0  # that a shorter prefill would let through earlier
    warmable: bool = False  # the worker restores for a warm request
    device_tokens: int = 0  # that its L1 holds; 0 = unknown
    reads_remote: bool = False  # its engine restores from other nodes and from SSD by itself, not from its node's L3 alone
    cut_rule: CutRule = CutRule.ENGINE  # both as in `CostParams`
    overlap_rho: float = 1.0
    pool: str = ""  # workers that are chosen among
    margin_ms: float = inf  # how much dearer the cheapest worker of another node would be, queues aside; inf: there is none


class LinkState(msgspec.Struct, frozen=True, gc=False):
    link: Link
    demand_bytes_per_ms: float = 0.0  # what demand reads take of it
    demand_waiting: bool = False  # a demand read is queued for it


class NodeState(msgspec.Struct, frozen=True, gc=False):
    free_bytes: int  # of L3, before anything must be evicted for what comes
    harm_ms_per_byte: float = 0.0  # what evicting a byte there costs, in expectation
    up: bool = True
    stage_bytes: float = inf  # that stages may hold of L3 together: more is not brought


class View(Protocol):
    """All answers are of now."""

    def target(self, subject: str, worker: WorkerKey | None) -> Target | None:
        """By the policy that will route the turn, or for `worker` where one is named. None: unknown subject or no worker."""
        ...

    def link(self, path: Path) -> LinkState: ...

    def node(self, node: str) -> NodeState: ...

    def changes(self, worker: WorkerKey) -> int:
        """Another number whenever `target` may answer otherwise than before for threads that last ran on `worker`: its engine
        gave up KV, workers came, went or filled up. While it stays the same, idle threads are not looked at again."""
        ...
