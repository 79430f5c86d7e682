"""One pool: the workers that serve the same models, with the index of what they hold and the policy that chooses among them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from costmodel.policies import REGISTRY
from costmodel.policies.base import Policy
from costmodel.values import Role, WorkerKey
from engine_adapters.adapters import adapter_for
from kvtier.index.memory import BlockIndex
from kvtier.shared_index.shared_index import SharedIndex
from router.admission import Admission
from router.config.tree import Config, PolicyConfig, PoolConfig, WorkerConfig
from router.fleet.rates import Rates
from router.fleet.worker import Worker, WorkerState


class Pool:
    """Holds `blocks` (engine block hashes, from KV events) and `lineage` (message digests, from what was routed)."""

    def __init__(self, config: PoolConfig, tree: Config) -> None:
        self.name = config.name
        self.config = config
        self._tree = tree
        self.adapter = adapter_for(config.engine)
        self.disaggregated = config.disaggregated
        self.pages_come = False  # whether what lies on other nodes is brought near a turn's worker before the turn is sent
        self.blocks = BlockIndex(tree.index.max_entries, tree.index.max_workers)
        kind = SharedIndex if tree.index.redis else BlockIndex
        self.lineage = kind(tree.index.max_entries, tree.index.max_workers)
        self.admission = Admission(
            limit=config.max_running_turns,
            queue_limit=tree.admission.queue_limit,
            timeout_s=tree.admission.queue_timeout_s,
        )
        self.rates = Rates(config.hardware.prefill_prior(), config.hardware.decode_prior())
        self.use(tree.policy)
        self.models: dict[str, None] = dict.fromkeys(name for name in config.models if name != "*")  # in order
        self.workers: dict[str, Worker] = {}
        for role, worker in config.workers():
            self.add(role, worker)

    def use(self, config: PolicyConfig) -> None:
        """Decide by this policy from the next turn on."""
        params = config.as_params()
        self.policy_config = config
        self.policy: Policy = REGISTRY[config.name](params)
        self.cost_params = params.cost

    def add(self, role: Role, config: WorkerConfig) -> Worker:
        worker = Worker(role, config, self.adapter, self.config.hardware, self._tree.breaker, self.rates)
        self.workers[worker.worker_id] = worker
        return worker

    def remove(self, worker_id: str) -> Worker:
        """Forget a worker and all that it was known to hold."""
        worker = self.workers.pop(worker_id)
        for key in worker.keys:
            self.forget(key)
        self.name_models()
        return worker

    def forget(self, key: WorkerKey) -> None:
        self.blocks.drop_source(key)
        self.lineage.drop_source(key)

    def with_role(self, role: Role) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.role is role]

    def able(self, now_ms: float, failed: AbstractSet[str] = frozenset()) -> list[Worker]:
        """Workers but `failed` that may be sent a turn. In a role of which there is none, those whose breaker is open only for
        what they answered: bad requests must not take a whole pool away from good ones."""
        left: Collection[Worker] = self.workers.values()
        if failed:
            left = [worker for worker in left if worker.worker_id not in failed]
        able = [worker for worker in left if worker.takes_turns(now_ms)]
        if len(able) == len(left):
            return able
        roles = {worker.role for worker in able}
        return able + [worker for worker in left if worker.role not in roles and worker.takes_turns_in_need]

    @property
    def missing_roles(self) -> list[Role]:
        """The roles of which no worker is ready. None missing means that turns can be served."""
        ready = {worker.role for worker in self.workers.values() if worker.state is WorkerState.READY}
        needed = (Role.PREFILL, Role.DECODE) if self.disaggregated else (Role.UNIFIED,)
        return [role for role in needed if role not in ready]

    @property
    def ready(self) -> bool:
        """A prefill and a decode worker are, or a unified one."""
        return not self.missing_roles

    def name_models(self) -> None:
        """Which models clients may ask for: configured, else what the engines report. To be called when workers change."""
        if self.config.models:
            return
        names = (name for worker in self.workers.values() if worker.info for name in worker.info.models)
        self.models = dict.fromkeys(names)

    @property
    def takes_unnamed(self) -> bool:
        """Whether this pool takes models that no pool names: it takes any, or nothing is known of it yet."""
        return "*" in self.config.models or not (self.models or self.config.models)
