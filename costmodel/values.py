"""The values a decision is made from and the decision itself.

Everything here is frozen and free of I/O: the router, the simulator and the tests fill the same values. Token counts are
whole prompt tokens, times are milliseconds, rates are per millisecond or per second as their names say.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec


class Tier(IntEnum):
    """Where a block lies, nearest first (DESIGN section 1)."""

    L1 = 1  # engine HBM
    L2 = 2  # engine host DRAM
    L3 = 3  # pool shared by all nodes
    L4 = 4  # SSD


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


class WorkerKey(NamedTuple):
    """One engine endpoint and data-parallel rank: the thing a turn is sent to."""

    worker_id: str
    dp_rank: int = 0


class Run(msgspec.Struct, frozen=True, gc=False):
    """`tokens` prompt tokens from `start` on that lie in one tier at one source node ("" = the worker itself)."""

    start: int
    tokens: int
    tier: Tier
    source: str = ""


class Residency(msgspec.Struct, frozen=True):
    """The leading runs of one prompt that one worker could restore, contiguous from token 0."""

    runs: tuple[Run, ...] = ()
    age_ms: float = 0.0  # since the newest report that supports it
    idle_ms: float = 0.0  # since the worker last used it, as far as is known

    @property
    def tokens(self) -> int:
        return self.runs[-1].start + self.runs[-1].tokens if self.runs else 0

    @property
    def device_tokens(self) -> int:
        """Of these the leading ones that lie in the worker's L1."""
        end = 0
        for run in self.runs:
            if run.tier is not Tier.L1:
                break
            end = run.start + run.tokens
        return end


class Turn(msgspec.Struct, frozen=True):
    """What is known of one LLM call before it is placed."""

    thread: str
    prompt_tokens: int
    expected_output_tokens: int = 256
    shared_tokens: int = 0  # leading tokens that a new thread has in common with others: system prompt and tools
    prefill_before: WorkerKey | None = None  # where this thread's last turn was prefilled and decoded
    decode_before: WorkerKey | None = None
    prefix: int | None = None  # names the leading part that other threads have sent before, where there is one
    deadline_ms: float | None = None  # of the first token; None = none


class Load(msgspec.Struct, frozen=True):
    """A worker's load: the engine's last report plus what this gateway sent since (predict-on-route).

    Running and waiting requests together are all that a decode engine has; how they part is as old as the report.
    """

    queued_uncached_tokens: float = 0.0  # waiting and in flight, not yet computed
    running_requests: int = 0
    waiting_requests: int = 0
    kv_tokens_used: int = 0
    kv_tokens_capacity: int = 0  # 0 = unknown
    max_running_requests: int = 0  # 0 = unknown
    age_ms: float = 0.0
    queued_ms: float | None = None  # the same work as predicted when it was placed; None = known in tokens only
    queued_turns: int = 0  # whose predictions make up `queued_ms`, each with a fixed cost of its own
    evicting: float = 1.0  # tokens of KV that each computed one pushes out: 0 while the cache has room
    turnover_ms: float = 0.0  # in which evictions replace the cache, with the host tier if there is one; 0 = nothing is evicted


class PrefillRates(msgspec.Struct, frozen=True):
    """compute_ms = base_ms + ms_per_token * (N-k) + ms_per_token2 * (N^2-k^2) + ms_per_cached_token * k."""

    base_ms: float
    ms_per_token: float
    ms_per_token2: float = 0.0
    queue_ms_per_token: float = 0.0  # throughput over whole batches, for the queue; 0 = unknown, ms_per_token stands in
    ms_per_cached_token: float = 0.0  # of reading or projecting KV that is there


class DecodeRates(msgspec.Struct, frozen=True):
    """Inter-token latency at batch b: itl_base_ms + itl_ms_per_running * b."""

    itl_base_ms: float
    itl_ms_per_running: float = 0.0
    lifetime_ms: float = 0.0  # how long a reply holds its slot and its KV; 0 = unknown, as long as this turn's would


class Link(msgspec.Struct, frozen=True):
    """One hop: latency plus bytes over bandwidth, shared by the flows active on it."""

    latency_ms: float
    bytes_per_ms: float
    active_flows: int = 0


class Prefill(msgspec.Struct, frozen=True):
    """A candidate for the prefill leg (or, for a unified worker, for the whole turn)."""

    worker: WorkerKey
    residency: Residency
    load: Load
    rates: PrefillRates
    restore: dict[Tier, Link]  # link that brings a run of this tier to L1; tiers absent here cannot be restored
    inflight_turns: int = 0
    inflight_tokens: int = 0  # prompt tokens of those turns
    routed_tokens: int | None = None  # leading prompt tokens that the gateway itself has sent here before; None = not recorded
    sources: dict[str, Link] = {}  # links of L3 and L4 runs by their source node; one that is not here goes by its tier's
    served_turns: int | None = None  # that it has answered since it came; None = not counted


class Decode(msgspec.Struct, frozen=True):
    """A candidate for the decode leg. `resident_tokens` of the prompt already lie in its L1."""

    worker: WorkerKey
    load: Load
    rates: DecodeRates
    transfer: Link
    resident_tokens: int = 0
    inflight_turns: int = 0
    inflight_tokens: int = 0  # prompt tokens of those turns
    served_turns: int | None = None


class Fleet(msgspec.Struct, frozen=True):
    """Everything a policy may look at. For a unified pool `decodes` pairs with `prefills` by worker key."""

    prefills: tuple[Prefill, ...]
    decodes: tuple[Decode, ...]
    kv_bytes_per_token: float
    disaggregated: bool
    queue_factor: float = 1.0  # what queues have lately taken against what their law says
    admit_factor: float = 1.0  # the same of waits for a slot or for KV room
    reuse_share: float = 1.0  # of prompt tokens that lately came from cache: how likely evicted KV would have been used again


class Terms(msgspec.Struct, frozen=True):
    """The cost of one pair, term by term, in ms (DESIGN section 4)."""

    queue_ms: float = 0.0
    fetch_ms: float = 0.0  # whole restore time; `exposed_ms` is the part that the total counts
    exposed_ms: float = 0.0
    compute_ms: float = 0.0
    transfer_ms: float = 0.0
    decode_ms: float = 0.0
    pressure_ms: float = 0.0
    admit_ms: float = 0.0  # until the decode side has a slot and KV room

    @property
    def ttft_ms(self) -> float:
        return self.admit_ms + self.queue_ms + self.exposed_ms + self.compute_ms + self.transfer_ms

    @property
    def total_ms(self) -> float:
        return self.ttft_ms + self.decode_ms + self.pressure_ms


class Scored(msgspec.Struct, frozen=True):
    """One pair that was considered. For a unified worker prefill == decode."""

    prefill: WorkerKey
    decode: WorkerKey
    cut_tokens: int  # k: tokens restored from cache; the rest is computed
    hit_tier: Tier | None  # deepest tier touched by the restored part, None when nothing is restored
    terms: Terms


class Decision(msgspec.Struct, frozen=True):
    """The chosen pair with every term, and the rest for `explain`."""

    chosen: Scored
    others: tuple[Scored, ...]
    policy: str
    reason: str  # one sentence: why this pair won
    guards: tuple[str, ...] = ()  # without which another pair would have been chosen
