"""Step 5: the fleet as plain values, and the policy's decision turned back into the workers that it names."""

from __future__ import annotations

import copy
from collections.abc import Set as AbstractSet
from random import Random

import msgspec

from costmodel.values import Decision, Decode, Fleet, Link, Prefill, Residency, Role, Turn, WorkerKey
from router.errors import NoWorker
from router.fleet.pool import Pool
from router.fleet.worker import Worker

_NOTHING = Residency()
_NO_LINK = Link(0.0, float("inf"))


class Placement(msgspec.Struct, frozen=True):
    """A decision with the workers behind it. For a unified worker `prefill is decode`."""

    decision: Decision
    prefill: Worker
    decode: Worker

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
    explain: bool = False,
) -> Placement:
    """Choose workers for `turn`, never one of `failed`. Raises NoWorker naming the role that is missing.

    `explain` is a dry run with every alternative: what the policy remembers of its decisions stays as it was.
    """
    fleet = snapshot(pool, residencies, failed=failed, now_ms=now_ms)
    _require(pool, fleet, failed)
    policy = copy.deepcopy(pool.policy) if explain else pool.policy
    decision = policy.decide(turn, fleet, now_ms, rng, explain)
    workers = pool.workers
    return Placement(decision, workers[decision.chosen.prefill.worker_id], workers[decision.chosen.decode.worker_id])


def snapshot(pool: Pool, residencies: dict[WorkerKey, Residency], *, failed: AbstractSet[str], now_ms: float) -> Fleet:
    """The candidates of this moment, one entry a rank."""
    prefills: list[Prefill] = []
    decodes: list[Decode] = []
    for worker in _candidates(pool, failed, now_ms):
        role, rates = worker.role, worker.rates
        prefill_rates, decode_rates = rates.prefill(now_ms), rates.decode(now_ms)
        for key, ledger in worker.ranked:
            load, turns = ledger.load(now_ms, prefill_rates.ms_per_token), ledger.inflight
            residency = residencies.get(key) or _NOTHING
            if role is not Role.DECODE:
                prefills.append(Prefill(key, residency, load, prefill_rates, pool.restore, turns))
            if role is not Role.PREFILL:
                link = _NO_LINK if role is Role.UNIFIED else worker.transfer.link
                decodes.append(Decode(key, load, decode_rates, link, residency.tokens, turns, ledger.decoding_tokens))
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
    if all(worker.full_until_ms <= now_ms for worker in able):
        return able
    roles = {worker.role for worker in able if worker.full_until_ms <= now_ms}
    return [worker for worker in able if worker.full_until_ms <= now_ms or worker.role not in roles]


def _require(pool: Pool, fleet: Fleet, failed: AbstractSet[str]) -> None:
    if fleet.prefills and fleet.decodes:
        return
    missing = "decode" if fleet.prefills else "prefill"
    role = missing if pool.disaggregated else "unified"
    tried = f"; {', '.join(sorted(failed))} failed this turn" if failed else ""
    raise NoWorker(f"no {role} worker of pool {pool.name!r} is ready{tried}")
