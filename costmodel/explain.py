"""A decision in one sentence, for people. Built only when somebody asks."""

from __future__ import annotations

from costmodel.params import Objective
from costmodel.values import Decision, Scored, Terms, Tier, Turn, WorkerKey


def explain_sentence(decision: Decision, turn: Turn, objective: Objective) -> str:
    """Why the pair won: "prefill p0 holds 12,288 of 12,900 tokens in L1: 41 ms against 388 ms on p1; decode d0: …".

    Each leg is compared with the cheapest of `decision.others` that differs in it; without any (not explained, or a fleet of
    one) only the chosen is told. Where a guard or another policy kept a dearer worker, "although" says so. For an objective of
    first tokens nothing behind them counts.
    """
    first = objective is Objective.TTFT
    chosen = decision.chosen
    held = f"{worker_name(chosen.prefill)} holds {_held(chosen, turn)}"
    if chosen.prefill == chosen.decode:
        rivals = [(_whole_ms(other.terms, first), other.prefill) for other in decision.others]
        return f"worker {held}: {_compare(_whole_ms(chosen.terms, first), rivals)}"
    prefills = [(_prefill_ms(o.terms), o.prefill) for o in decision.others if o.prefill != chosen.prefill]
    decodes = [(_decode_ms(o.terms, first), o.decode) for o in decision.others if o.decode != chosen.decode]
    prefill = _compare(_prefill_ms(chosen.terms), prefills)
    decode = _compare(_decode_ms(chosen.terms, first), decodes)
    return f"prefill {held}: {prefill}; decode {worker_name(chosen.decode)}: {decode}{'' if first else _pressure(chosen.terms)}"


def worker_name(worker: WorkerKey) -> str:
    """`p0`, or `p0/3` for a data-parallel rank other than 0."""
    return f"{worker.worker_id}/{worker.dp_rank}" if worker.dp_rank else worker.worker_id


def pair_words(scored: Scored) -> str:
    """`p0 > d1`, or a unified worker's name."""
    if scored.prefill == scored.decode:
        return worker_name(scored.prefill)
    return f"{worker_name(scored.prefill)} > {worker_name(scored.decode)}"


def _held(chosen: Scored, turn: Turn) -> str:
    if chosen.hit_tier is None:
        return f"none of {turn.prompt_tokens:,} tokens"
    where = "in L1" if chosen.hit_tier == Tier.L1 else f"down to {chosen.hit_tier.name}"
    return f"{chosen.cut_tokens:,} of {turn.prompt_tokens:,} tokens {where}"


def _compare(chosen_ms: float, rivals: list[tuple[float, WorkerKey]]) -> str:
    if not rivals:
        return f"{chosen_ms:,.0f} ms"
    rival_ms, worker = min(rivals)
    word = "against" if chosen_ms <= rival_ms else "although"
    return f"{chosen_ms:,.0f} ms {word} {rival_ms:,.0f} ms on {worker_name(worker)}"


def _prefill_ms(terms: Terms) -> float:
    return terms.queue_ms + terms.exposed_ms + terms.compute_ms


def _decode_ms(terms: Terms, first: bool) -> float:
    return terms.admit_ms + terms.transfer_ms + (0.0 if first else terms.decode_ms)


def _whole_ms(terms: Terms, first: bool) -> float:
    return terms.ttft_ms if first else terms.total_ms


def _pressure(terms: Terms) -> str:
    return f"; {terms.pressure_ms:,.0f} ms of KV pressure" if terms.pressure_ms >= 0.5 else ""
