"""Step 5: the fleet as plain values, and the policy's decision turned back into the workers that it names."""

from __future__ import annotations

import copy
from collections.abc import Set as AbstractSet
from random import Random

import msgspec

from costmodel.counterfactual import explained_lots, name_guards
from costmodel.params import CostParams
from costmodel.policies import CostPolicy
from costmodel.score import runners_up
from costmodel.values import Decision, Decode, Fleet, Link, Prefill, Residency, Role, Scored, Turn, WorkerKey
from router.errors import NoWorker, Shed
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.turn.due import Due

_NOTHING = Residency()
_MOST_RETRY_S = 60.0
_NO_LINK = Link(0.0, float("inf"))
_PREFILL, _DECODE, _UNIFIED = Role.PREFILL, Role.DECODE, Role.UNIFIED  # looked up in their enum they take ten times as long


class Placement(msgspec.Struct, frozen=True):
    """A decision with the workers behind it. For a unified worker `prefill is decode`."""

    decision: Decision
    prefill: Worker
    decode: Worker
    rival: Scored | None = None  # of a turn whose regret is looked at: the best pair with another prefill worker

    @property
    def prefill_rank(self) -> int:
        return self.decision.chosen.prefill.dp_rank

    @property
    def decode_rank(self) -> int:
        return self.decision.chosen.decode.dp_rank

    @property
    def disaggregated(self) -> bool:
        return self.prefill is not self.decode


def place(
    pool: Pool,
    turn: Turn,
    residencies: dict[WorkerKey, Residency],
    *,
    failed: AbstractSet[str],
    now_ms: float,
    rng: Random,
    due: Due | None = None,
    with_rival: bool = False,
) -> Placement:
    """Choose workers for `turn`, never one of `failed`. Raises NoWorker naming the role that is missing, and Shed for a turn
    that its class would rather refuse than serve late."""
    fleet = snapshot(pool, residencies, failed=failed, now_ms=now_ms)
    _require(pool, fleet, failed)
    decision = pool.policy.decide(turn, fleet, now_ms, rng)
    if due is not None and due.shed and turn.deadline_ms is not None:
        _require_in_time(decision.chosen.terms.ttft_ms, turn.deadline_ms, due)
    placement = _placement(pool, decision)
    if not with_rival:
        return placement
    return msgspec.structs.replace(placement, rival=_rival(turn, decision.chosen, fleet, pool.cost_params))


def explain(pool: Pool, turn: Turn, residencies: dict[WorkerKey, Residency], now_ms: float) -> Placement:
    """A dry run of `place` with every alternative and the guards that decided: what the policy remembers stays as it was.
    Raises NoWorker."""
    fleet = snapshot(pool, residencies, failed=frozenset(), now_ms=now_ms)
    _require(pool, fleet, frozenset())
    decision = copy.deepcopy(pool.policy).decide(turn, fleet, now_ms, explained_lots(), explain=True)
    if isinstance(pool.policy, CostPolicy):
        decision = name_guards(pool.policy, decision, turn, fleet, now_ms)
    return _placement(pool, decision)


def snapshot(pool: Pool, residencies: dict[WorkerKey, Residency], *, failed: AbstractSet[str], now_ms: float) -> Fleet:
    """The candidates of this moment, one entry a rank. Without `policy.predict_on_route` only engines' reports count."""
    predicts = pool.policy_config.predict_on_route
    prefills: list[Prefill] = []
    decodes: list[Decode] = []
    for worker in _candidates(pool, failed, now_ms):
        role, rates = worker.role, worker.rates
        prefill_rates, decode_rates = rates.prefill(now_ms), rates.decode(now_ms)
        for key, ledger in worker.ranked:
            load = ledger.load(now_ms, prefill_rates.ms_per_token, booked=predicts)
            turns, tokens = (ledger.inflight, ledger.decoding_tokens) if predicts else (0, 0)
            prompts = ledger.prefilling_tokens if predicts else 0
            residency = residencies.get(key, _NOTHING)
            if role is not _DECODE:
                links, served = worker.links, rates.served
                prefills.append(
                    Prefill(key, residency, load, prefill_rates, links.restore, turns, prompts, None, links.sources, served)
                )
            if role is not _PREFILL:
                link = _NO_LINK if role is _UNIFIED else worker.transfer.link
                held = 0 if residency is _NOTHING else residency.device_tokens
                decodes.append(Decode(key, load, decode_rates, link, held, turns, tokens, rates.served))
    kv_bytes, waits = pool.config.hardware.kv_bytes_per_token, pool.rates
    return Fleet(
        tuple(prefills),
        tuple(decodes),
        kv_bytes,
        pool.disaggregated,
        waits.queue_factor.value,
        waits.admit_factor.value,
        waits.reuse_share,
    )


def _candidates(pool: Pool, failed: AbstractSet[str], now_ms: float) -> list[Worker]:
    """The workers that may be sent a turn. One that has just refused as too busy is left out while another of its
    role has not."""
    able = pool.able(now_ms, failed)
    if not [worker for worker in able if worker.full_until_ms > now_ms]:
        return able
    roles = {worker.role for worker in able if worker.full_until_ms <= now_ms}
    return [worker for worker in able if worker.full_until_ms <= now_ms or worker.role not in roles]


def _rival(turn: Turn, chosen: Scored, fleet: Fleet, params: CostParams) -> Scored | None:
    others = (each for each in runners_up(turn, chosen, fleet, params) if each.prefill != chosen.prefill)
    return min(others, key=lambda each: each.terms.ttft_ms, default=None)


def _placement(pool: Pool, decision: Decision) -> Placement:
    workers, chosen = pool.workers, decision.chosen
    return Placement(decision, workers[chosen.prefill.worker_id], workers[chosen.decode.worker_id])


def _require_in_time(ttft_ms: float, deadline_ms: float, due: Due) -> None:
    """The policy has found no pair in time if the chosen one is not."""
    late_s = (ttft_ms - deadline_ms) / 1000
    if late_s > 0:
        late, given = _told(late_s), _told(due.ttft_ms / 1000)
        raise Shed(
            f"the first token would come {late} after the {given} that class {due.name!r} is given",
            retry_after_s=min(max(1.0, late_s), _MOST_RETRY_S),
        )


def _told(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{seconds * 1000:.2g} ms"


def _require(pool: Pool, fleet: Fleet, failed: AbstractSet[str]) -> None:
    if fleet.prefills and fleet.decodes:
        return
    missing = "decode" if fleet.prefills else "prefill"
    role = missing if pool.disaggregated else "unified"
    tried = f"; {', '.join(sorted(failed))} failed this turn" if failed else ""
    raise NoWorker(f"no {role} worker of pool {pool.name!r} is ready{tried}")
