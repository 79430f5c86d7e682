"""The planner's view of this gateway's fleet: the policy that routes turns answers for turns to come."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import inf
from random import Random

from costmodel.policies.base import NoCandidates, Policy
from costmodel.terms import queue_ms
from costmodel.values import Fleet as CostFleet
from costmodel.values import Prefill, Residency, Role, Tier, WorkerKey
from engine_adapters.base import EngineKind
from kvtier.index.convert import to_residency
from kvtier.prefetch.destination import margin_ms
from kvtier.prefetch.view import Extent, LinkState, NodeState, Path, Place, Target
from router.clock import Clock
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.prefetch.kv_bytes import KvBytes
from router.prefetch.links import LinkBook
from router.prefetch.subjects import Prompt, Subjects
from router.turn.place import snapshot

_ENGINE_TIERS = (Tier.L1, Tier.L2)
_REUSED_SHARE = 0.3  # of evicted KV that would have been used again, as long as nothing better is known


class FleetView:
    """`applied(worker)`: a number that grows with every KV event of that worker."""

    def __init__(
        self,
        fleet: Fleet,
        subjects: Subjects,
        links: LinkBook,
        kv_bytes: KvBytes,
        applied: Callable[[str], int],
        clock: Clock,
        *,
        warm: bool = True,
    ) -> None:
        self._warm = warm
        self._fleet = fleet
        self._subjects = subjects
        self._links = links
        self._kv_bytes = kv_bytes
        self._applied = applied
        self._clock = clock
        self._rng = Random(0)  # a forecast must not move the real generator
        self._policies: dict[str, tuple[Policy, Policy]] = {}

    def target(self, subject: str, worker: WorkerKey | None) -> Target | None:
        prompt = self._subjects.prompt(subject)
        if prompt is None or not len(prompt.blocks):
            return None
        fleet = self._snapshot(prompt)
        if not fleet.prefills or not fleet.decodes:
            return None
        key, margin = (worker, inf) if worker is not None else self._choose(prompt, fleet)
        prefill = next((each for each in fleet.prefills if each.worker == key), None)
        return None if prefill is None else self._target(prompt, prefill, margin)

    def link(self, path: Path) -> LinkState:
        return self._links.state(path)

    def node(self, node: str) -> NodeState:
        return self._links.node(node)

    def changes(self, worker: WorkerKey) -> int:
        """Events of its engine, and which workers take turns."""
        ready = tuple((each.worker_id, each.state) for each in self._fleet.workers)
        return hash((self._applied(worker.worker_id), ready))

    def _snapshot(self, prompt: Prompt) -> CostFleet:
        now_ms = self._clock()
        matches = prompt.pool.blocks.match(prompt.blocks, now_ms)
        held = {key: to_residency(match, prompt.block_tokens, prompt.tokens - 1) for key, match in matches.items()}
        return snapshot(prompt.pool, held, failed=frozenset(), now_ms=now_ms)

    def _choose(self, prompt: Prompt, fleet: CostFleet) -> tuple[WorkerKey | None, float]:
        """Where the policy would send it, and how much dearer the next node is."""
        try:
            decision = self._policy(prompt.pool).decide(prompt.turn, fleet, self._clock(), self._rng, explain=True)
        except NoCandidates:
            return None, inf
        chosen, workers = decision.chosen.prefill, prompt.pool.workers
        node = workers[chosen.worker_id].node
        here = {each.worker for each in fleet.prefills if workers[each.worker.worker_id].node == node}
        return chosen, margin_ms(decision, here)

    def _policy(self, pool: Pool) -> Policy:
        """A copy: what a policy remembers of its decisions stays as it was."""
        known = self._policies.get(pool.name)
        if known is None or known[0] is not pool.policy:
            known = self._policies[pool.name] = (pool.policy, copy.deepcopy(pool.policy))
        return known[1]

    def _target(self, prompt: Prompt, prefill: Prefill, margin: float) -> Target:
        pool, worker = prompt.pool, prompt.pool.workers[prefill.worker.worker_id]
        kv_bytes = self._kv_bytes.of(pool)
        self._links.harm(worker.node, _REUSED_SHARE * prefill.rates.ms_per_token / kv_bytes)
        return Target(
            worker=prefill.worker,
            node=worker.node,
            prompt_tokens=prompt.tokens,
            named_tokens=len(prompt.blocks) * prompt.block_tokens,
            extents=_extents(prefill.residency, worker.node),
            rates=prefill.rates,
            restore=prefill.restore,
            kv_bytes_per_token=kv_bytes,
            sized=self._kv_bytes.known(pool),
            page_tokens=prompt.block_tokens,
            queue_ms=queue_ms(prefill.load, prefill.rates),
            waiting_turns=prefill.load.waiting_requests,
            device_tokens=worker.info.kv_tokens_capacity if worker.info is not None else 0,
            warmable=self._warm and prompt.ids_known and _warmable(pool, worker),
            pool=pool.name,
            margin_ms=margin,
        )


def _extents(residency: Residency, node: str) -> tuple[Extent, ...]:
    """Runs of the worker itself are its engine's, or pages that its engine told of beyond its host tier."""
    return tuple(
        Extent(run.start, run.tokens, engine=run.tier)
        if run.tier in _ENGINE_TIERS
        else Extent(run.start, run.tokens, (Place(run.source or node, run.tier),))
        for run in residency.runs
    )


def _warmable(pool: Pool, worker: Worker) -> bool:
    return pool.adapter.kind is EngineKind.SGLANG and worker.role is not Role.DECODE
