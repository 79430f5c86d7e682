"""The terms of a turn's cost, each one a plain function of frozen values to milliseconds (DESIGN section 4).

Nothing here chooses: `cut` picks the restore cut, `score` adds the terms up, the policies compare them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from costmodel.values import Decode, DecodeRates, Link, Load, PrefillRates, Run, Tier

_L1 = Tier.L1
_L2 = Tier.L2
_L3 = Tier.L3
FORWARD_TOKENS = 8192  # of prompts in one forward: SGLang's and vLLM's default on accelerators of 80 GB
NO_SOURCES: Mapping[str, Link] = {}
Leg = Tier | str | tuple[Tier, str]  # of a restore: a tier's link, that of one source node, or a tier's there


def queue_ms(load: Load, rates: PrefillRates) -> float:
    """Time until the worker has computed what is ahead of this turn: as predicted by turn, else at its measured throughput.

    Tokens alone say too little: behind a long context a token costs several times what one at the start does. Turns that wait
    are computed together as far as a forward takes them, so that its fixed cost counts once a forward and not once a turn.
    """
    ahead_ms = load.queued_ms
    if ahead_ms is None:
        return load.queued_uncached_tokens * (rates.queue_ms_per_token or rates.ms_per_token)
    if load.queued_turns < 2:
        return ahead_ms
    forwards = max(1, math.ceil(load.queued_uncached_tokens / FORWARD_TOKENS))
    return max(0.0, ahead_ms - rates.base_ms * max(0, load.queued_turns - forwards))


def link_ms(link: Link, size_bytes: float) -> float:
    """One run over one hop: latency plus bytes over the share that is left beside the flows already active."""
    return link.latency_ms + size_bytes * (1 + link.active_flows) / link.bytes_per_ms


def fetch_ms(
    runs: Sequence[Run],
    cut_tokens: int,
    restore: Mapping[Tier, Link],
    kv_bytes_per_token: float,
    sources: Mapping[str, Link] = NO_SOURCES,
) -> float:
    """Time to bring the first `cut_tokens` of `runs` to L1; infinite if a run before the cut cannot be restored.

    Runs of one tier and source follow each other on their link. Legs are pipelined: the slowest is the whole time. What comes
    from beyond L2 passes the L2 link as well, when there is one.
    """
    legs: dict[Leg, float] = {}
    for run in runs:
        if run.start >= cut_tokens:
            break
        if run.tier == _L1:
            continue
        if run.tier not in restore:
            return float("inf")
        size_bytes = min(run.tokens, cut_tokens - run.start) * kv_bytes_per_token
        add_run(legs, run, size_bytes, restore, sources)
    return max(legs.values(), default=0.0)


def add_run(
    legs: dict[Leg, float], run: Run, size_bytes: float, restore: Mapping[Tier, Link], sources: Mapping[str, Link]
) -> None:
    """Add one run to the busy time of every leg that it passes on its way to L1. A source without a link of its own goes by its
    tier's."""
    tier = run.tier
    if tier == _L2:
        legs[_L2] = legs.get(_L2, 0.0) + link_ms(restore[_L2], size_bytes)
        return
    own = sources.get(run.source) if sources else None
    leg: Leg = tier if own is None else run.source
    legs[leg] = legs.get(leg, 0.0) + link_ms(own or restore[tier], size_bytes)
    if own is not None and tier != _L3:  # another node's SSD is believed to be as fast as this one's
        ssd = tier, run.source
        legs[ssd] = legs.get(ssd, 0.0) + link_ms(restore[tier], size_bytes)
    if (host := restore.get(_L2)) is not None:
        legs[_L2] = legs.get(_L2, 0.0) + link_ms(host, size_bytes)


def compute_ms(rates: PrefillRates, prompt_tokens: int, cut_tokens: int) -> float:
    """Prefill of the tokens behind the cut, which attend to everything before them: a + b (N-k) + c (N^2 - k^2) + d k."""
    new = prompt_tokens - cut_tokens
    computing_ms = new * (rates.ms_per_token + rates.ms_per_token2 * (prompt_tokens + cut_tokens))
    return rates.base_ms + computing_ms + cut_tokens * rates.ms_per_cached_token


def exposed_ms(legs: Mapping[Leg, float], queue: float, compute: float, rho: float) -> float:
    """What of a fetch delays the first token.

    Reads from beyond L2 begin when the turn arrives and are over before it is scheduled: the queue hides them. The load-back
    from L2 begins with the forward, layer by layer: the share `rho` of compute hides it.
    """
    host = deep = 0.0
    for leg, busy_ms in legs.items():
        if leg == _L2:
            host = busy_ms
        elif busy_ms > deep:
            deep = busy_ms
    return max(0.0, deep - queue) + max(0.0, host - rho * compute)


def transfer_ms(decode: Decode, prompt_tokens: int, kv_bytes_per_token: float) -> float:
    """Prefill to decode: the bytes of the prompt that decode lacks."""
    missing = prompt_tokens - decode.resident_tokens
    return link_ms(decode.transfer, missing * kv_bytes_per_token) if missing > 0 else 0.0


def itl_ms(load: Load, rates: DecodeRates) -> float:
    """Inter-token latency once this turn has joined: at the batch of running and waiting requests plus one."""
    batch = load.running_requests + load.waiting_requests + 1
    if 0 < load.max_running_requests < batch:
        batch = load.max_running_requests
    return rates.itl_base_ms + rates.itl_ms_per_running * batch


def decode_ms(load: Load, rates: DecodeRates, output_tokens: int) -> float:
    """The expected output at this batch's pace."""
    return output_tokens * itl_ms(load, rates)


def admit_ms(load: Load, rates: DecodeRates, needed_tokens: int, output_tokens: int, fraction: float) -> float:
    """Wait for a slot and for KV room, first come first served: whichever takes longer.

    A full worker frees all its slots, and all its KV, within one reply's lifetime, so what is missing frees in its share of
    that. Of KV only `fraction` of the capacity is for the taking: engines keep a reserve for the replies that run. Unknown
    sizes mean no wait. What is used may exceed the capacity: turns that wait count.
    """
    missing = 0.0
    slots = load.max_running_requests
    excess = load.running_requests + load.waiting_requests + 1 - slots
    if slots > 0 and excess > 0:
        missing = excess / slots
    if fraction > 0 and load.kv_tokens_capacity > 0:
        room = fraction * load.kv_tokens_capacity
        short = (load.kv_tokens_used + needed_tokens - room) / room
        if short > missing:
            missing = short
    if missing <= 0:
        return 0.0
    return missing * (rates.lifetime_ms or output_tokens * itl_ms(load, rates))


def prefill_pressure_ms(load: Load, rates: PrefillRates, needed_tokens: int, fraction: float) -> float:
    """A prefill worker whose KV is used beyond `fraction` of capacity frees tokens as fast as it computes them; 0 when off or
    capacity is unknown."""
    if fraction <= 0 or load.kv_tokens_capacity <= 0:
        return 0.0
    overflow = max(0.0, load.kv_tokens_used + needed_tokens - fraction * load.kv_tokens_capacity)
    return overflow * (rates.queue_ms_per_token or rates.ms_per_token)


def live_probability(age_ms: float, half_life_ms: float) -> float:
    """How far residency last supported `age_ms` ago is still believed; 1 when the discount is off (half-life 0)."""
    return 1.0 if half_life_ms <= 0 or age_ms <= 0 else 0.5 ** (age_ms / half_life_ms)
