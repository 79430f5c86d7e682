"""sglang's experimental `sgl-router`, cache aware: least uncached work within a margin, unless it is much more pressured.

    matched_i = resident tokens, a hit from 1,024 on;  E_i = prompt - matched_i
    candidates = the best clamp(5 % of n, 8, 32) hits by (E, prefill pressure, id)
    winner     = walk over those with E <= least E + 1,024: of two within 1,024 of each other the one whose queue is neither
                 1,024 tokens nor 1.5 times longer, else by rank
    no hit     = power of two on pressure; decode likewise

Source: sgl-project/sglang `experimental/sgl-router/src/policies_reorg/cache_aware.rs` @0347335 (`candidates`, `resolve`,
`more_pressured`), `policies/admission.rs` (pressure orders), defaults of `config/types.rs`: guard on tokens (no threshold in
ms), no queue limit, no saturation floor. It is tier-blind by design.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from costmodel.policies.choice import of_two
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.terms import queue_ms
from costmodel.values import Decode, Fleet, Prefill, Turn, WorkerKey

MIN_MATCHED_TOKENS = 1024
SWITCH_MARGIN_TOKENS = 1024
PRESSURE_TOKENS = 1024
PRESSURE_RATIO = 1.5
CANDIDATE_SHARE = 0.05
MIN_CANDIDATES = 8
MAX_CANDIDATES = 32


class SglRouterPolicy(TwoLegPolicy):
    """Stateless."""

    name = "sgl_router"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        hits = candidates(turn, fleet.prefills)
        return winner(turn, hits) if hits else of_two(fleet.prefills, prefill_pressure, rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        return of_two(fleet.decodes, decode_pressure, rng)


def candidates(turn: Turn, prefills: Sequence[Prefill]) -> list[Prefill]:
    """Holders with a hit, ranked and bounded."""
    hits = [prefill for prefill in prefills if prefill.residency.tokens >= MIN_MATCHED_TOKENS]
    limit = min(MAX_CANDIDATES, max(MIN_CANDIDATES, math.ceil(CANDIDATE_SHARE * len(prefills))))
    return sorted(hits, key=lambda prefill: _rank(turn, prefill))[:limit]


def winner(turn: Turn, ranked: Sequence[Prefill]) -> Prefill:
    """The walk over near ties; `ranked` is not empty and in order of rank."""
    best = ranked[0]
    ceiling = _uncached(turn, best) + SWITCH_MARGIN_TOKENS
    for prefill in ranked[1:]:
        if _uncached(turn, prefill) > ceiling:
            break
        if _beats(turn, prefill, best):
            best = prefill
    return best


def prefill_pressure(prefill: Prefill) -> tuple[float, ...]:
    load = prefill.load
    return (
        queue_ms(load, prefill.rates),
        load.queued_uncached_tokens,
        load.waiting_requests,
        load.running_requests,
        prefill.inflight_turns,
    )


def decode_pressure(decode: Decode) -> tuple[float, ...]:
    load = decode.load
    use = load.kv_tokens_used / load.kv_tokens_capacity if load.kv_tokens_capacity else 0.0
    return (load.waiting_requests, load.running_requests, use, load.kv_tokens_used, decode.inflight_turns)


def _beats(turn: Turn, prefill: Prefill, best: Prefill) -> bool:
    """The pressure guard decides between near ties; where it has no opinion, and between others, rank does."""
    if abs(_uncached(turn, prefill) - _uncached(turn, best)) <= SWITCH_MARGIN_TOKENS:
        if _more_pressured(best, prefill):
            return True
        if _more_pressured(prefill, best):
            return False
    return _rank(turn, prefill) < _rank(turn, best)


def _uncached(turn: Turn, prefill: Prefill) -> int:
    return turn.prompt_tokens - min(prefill.residency.tokens, turn.prompt_tokens)


def _rank(turn: Turn, prefill: Prefill) -> tuple[int, tuple[float, ...], WorkerKey]:
    return (_uncached(turn, prefill), prefill_pressure(prefill), prefill.worker)


def _more_pressured(left: Prefill, right: Prefill) -> bool:
    more, less = left.load.queued_uncached_tokens, right.load.queued_uncached_tokens
    return more - less > PRESSURE_TOKENS and more > PRESSURE_RATIO * less
