"""One candidate's cost in milliseconds, and a pair's as `Scored`.

The total of a pair is the prefill candidate's cost plus the decode candidate's cost: the transfer is a link of the decode
candidate, so neither depends on the other. Every policy predicts with these functions, so that predicted against actual can be
compared whatever the policy.
"""

from __future__ import annotations

import msgspec

from costmodel.cut import Cut, Site, find_cut, no_cut
from costmodel.params import CostParams
from costmodel.survival import survival
from costmodel.terms import (
    admit_ms,
    compute_ms,
    decode_ms,
    live_probability,
    prefill_pressure_ms,
    queue_ms,
    transfer_ms,
)
from costmodel.values import Decode, Fleet, Load, Prefill, Scored, Terms, Turn


class PrefillScore(msgspec.Struct, frozen=True, gc=False):
    """`cost_ms` is what a choice weighs: with a displacement weight it counts more than the turn's own time."""

    cost_ms: float
    queue_ms: float
    pressure_ms: float
    cut: Cut

    @property
    def ttft_ms(self) -> float:
        """The first token's time as far as prefill goes."""
        return self.queue_ms + self.cut.exposed_ms + self.cut.compute_ms


class DecodeScore(msgspec.Struct, frozen=True, gc=False):
    cost_ms: float
    transfer_ms: float
    decode_ms: float
    admit_ms: float

    @property
    def ttft_ms(self) -> float:
        """The first token's time as far as decode goes."""
        return self.transfer_ms + self.admit_ms


def score_prefill(turn: Turn, prefill: Prefill, fleet: Fleet, params: CostParams) -> PrefillScore:
    """Queue, exposed fetch and compute at the cut that the rule gives. A stale hit counts as the gamble that it is."""
    load, rates, residency = prefill.load, prefill.rates, prefill.residency
    queue = queue_ms(load, rates) * fleet.queue_factor
    if residency.runs:
        site = Site(residency, prefill.restore, rates, queue, fleet.kv_bytes_per_token, params.overlap_rho, prefill.sources)
        cut = find_cut(turn.prompt_tokens, site, params.cut_rule)
        if cut.tokens and (p := _live(prefill, queue, params)) < 1:
            cut = _expected(cut, turn, prefill, p)
    else:
        cut = no_cut(turn.prompt_tokens, rates)
    pressure = 0.0
    if fleet.disaggregated and load.kv_tokens_capacity:  # a unified worker's KV pressure is its decode side's
        needed = turn.prompt_tokens - residency.device_tokens
        pressure = prefill_pressure_ms(load, rates, needed, params.kv_pressure_fraction)
    computing = displacing(load, fleet, params) * cut.compute_ms
    return PrefillScore(queue + cut.exposed_ms + computing + pressure, queue, pressure, cut)


def displacing(load: Load, fleet: Fleet, params: CostParams) -> float:
    """What a ms of compute counts: itself, and what the KV that it pushes out will cost to compute again."""
    return 1 + params.displacement_weight * fleet.reuse_share * load.evicting


def score_decode(turn: Turn, decode: Decode, fleet: Fleet, params: CostParams) -> DecodeScore:
    """Transfer of what is missing, wait for a slot and for KV room, and the expected output."""
    load, output = decode.load, turn.expected_output_tokens
    transfer = transfer_ms(decode, turn.prompt_tokens, fleet.kv_bytes_per_token) if fleet.disaggregated else 0.0
    decoding = decode_ms(load, decode.rates, output)
    needed = turn.prompt_tokens - decode.resident_tokens + output
    if decode.inflight_tokens > load.kv_tokens_used:  # turns sent since the last report will need room as well
        needed += decode.inflight_tokens - load.kv_tokens_used
    admit = admit_ms(load, decode.rates, needed, output, params.kv_pressure_fraction) * fleet.admit_factor
    return DecodeScore(transfer + decoding + admit, transfer, decoding, admit)


def join(prefill: Prefill, left: PrefillScore, decode: Decode, right: DecodeScore) -> Scored:
    """A pair with every term."""
    cut = left.cut
    terms = Terms(
        left.queue_ms,
        cut.fetch_ms,
        cut.exposed_ms,
        cut.compute_ms,
        right.transfer_ms,
        right.decode_ms,
        left.pressure_ms,
        right.admit_ms,
    )
    return Scored(prefill.worker, decode.worker, cut.tokens, cut.tier, terms)


def score_pair(turn: Turn, prefill: Prefill, decode: Decode, fleet: Fleet, params: CostParams) -> Scored:
    """The prediction for a pair that was chosen by other means."""
    left = score_prefill(turn, prefill, fleet, params)
    return join(prefill, left, decode, score_decode(turn, decode, fleet, params))


def runners_up(turn: Turn, chosen: Scored, fleet: Fleet, params: CostParams) -> tuple[Scored, ...]:
    """Every other prefill with the chosen decode and every other decode with the chosen prefill, cheapest first."""
    pairs = []
    for prefill, decode in _neighbours(chosen, fleet):
        pairs.append(score_pair(turn, prefill, decode, fleet, params))
    return tuple(sorted(pairs, key=lambda scored: scored.terms.total_ms))


def decode_side(prefill: Prefill, index: int, fleet: Fleet) -> Decode:
    """A unified worker's decode candidate: at the same place as a rule, else found by key. Raises `ValueError` without one."""
    decodes = fleet.decodes
    if index < len(decodes) and decodes[index].worker == prefill.worker:
        return decodes[index]
    for decode in decodes:
        if decode.worker == prefill.worker:
            return decode
    raise ValueError(f"unified worker {prefill.worker} has no decode candidate: a unified pool lists each worker in both")


def _neighbours(chosen: Scored, fleet: Fleet) -> list[tuple[Prefill, Decode]]:
    if not fleet.disaggregated:
        sides = [(prefill, decode_side(prefill, i, fleet)) for i, prefill in enumerate(fleet.prefills)]
        return [(prefill, decode) for prefill, decode in sides if prefill.worker != chosen.prefill]
    best_prefill = next(p for p in fleet.prefills if p.worker == chosen.prefill)
    best_decode = next(d for d in fleet.decodes if d.worker == chosen.decode)
    others: list[tuple[Prefill, Decode]] = [(p, best_decode) for p in fleet.prefills if p is not best_prefill]
    return others + [(best_prefill, d) for d in fleet.decodes if d is not best_decode]


def _live(prefill: Prefill, queue: float, params: CostParams) -> float:
    """The probability that the worker still has its prefix when the turn's prefill begins."""
    residency = prefill.residency
    p = live_probability(residency.age_ms, params.staleness_half_life_ms)
    if params.eviction_discount and residency.idle_ms > 0:
        lasts = survival(residency.idle_ms, residency.age_ms, queue, prefill.load.turnover_ms)
        p *= 1 - params.eviction_discount * (1 - lasts)
    return p


def _expected(cut: Cut, turn: Turn, prefill: Prefill, p: float) -> Cut:
    """The hit is live with probability p; otherwise all is computed. The best k is the same for every p."""
    miss = compute_ms(prefill.rates, turn.prompt_tokens, 0)
    return Cut(cut.tokens, cut.tier, p * cut.fetch_ms, p * cut.exposed_ms, p * cut.compute_ms + (1 - p) * miss)
