"""All pools, looked up by model. The one place where workers are added, drained and removed at run time."""

from __future__ import annotations

from costmodel.values import Role
from router.config.tree import Config, PolicyConfig, WorkerConfig
from router.errors import BadRequest, UnknownModel
from router.fleet.pool import Pool
from router.fleet.worker import Worker, WorkerState


class Fleet:
    def __init__(self, config: Config) -> None:
        self.pools: dict[str, Pool] = {pool.name: Pool(pool, config) for pool in config.pools}
        self.policy_config = config.policy

    def pool_for(self, model: str) -> Pool:
        """The pool that serves `model`; before discovery a single pool without a model list takes everything."""
        for pool in self.pools.values():
            if model in pool.models:
                return pool
        for pool in self.pools.values():
            if pool.takes_unnamed:
                return pool
        known = ", ".join(sorted(name for pool in self.pools.values() for name in pool.models)) or "none yet"
        raise UnknownModel(f"model {model!r} is not served here; known models: {known}", param="model")

    @property
    def workers(self) -> list[Worker]:
        return [worker for pool in self.pools.values() for worker in pool.workers.values()]

    @property
    def ready(self) -> bool:
        return any(pool.ready for pool in self.pools.values())

    def find(self, worker_id: str) -> tuple[Pool, Worker]:
        for pool in self.pools.values():
            if worker_id in pool.workers:
                return pool, pool.workers[worker_id]
        raise BadRequest(f"no worker {worker_id!r}; GET /admin/workers lists them", param="worker_id")

    def add(self, pool_name: str, role: Role, config: WorkerConfig) -> Worker:
        if pool_name not in self.pools:
            raise BadRequest(f"no pool {pool_name!r}; pools: {', '.join(self.pools)}", param="pool")
        pool = self.pools[pool_name]
        if (role is Role.UNIFIED) == pool.disaggregated:
            wanted = "prefill or decode" if pool.disaggregated else "unified"
            raise BadRequest(f"pool {pool_name!r} takes {wanted} workers", param="role")
        for worker in self.workers:
            _check_other(worker, config)
        return pool.add(role, config)

    def drain(self, worker_id: str) -> Worker:
        """No new turns; running streams finish. Draining twice is fine; a drained worker can be removed."""
        _, worker = self.find(worker_id)
        worker.state = WorkerState.DRAINING
        return worker

    def remove(self, worker_id: str) -> Worker:
        pool, _ = self.find(worker_id)
        return pool.remove(worker_id)

    def replace_policy(self, config: PolicyConfig) -> None:
        """Every pool decides its next turn with the new policy; the old object finishes what it has placed."""
        self.policy_config = config
        for pool in self.pools.values():
            pool.use(config)


def _check_other(worker: Worker, config: WorkerConfig) -> None:
    """Raises `BadRequest` where `config` is of that same worker."""
    same_name = worker.worker_id == config.worker_id
    if same_name or worker.config.url == config.url:
        here = f"worker {worker.worker_id!r} ({worker.config.url}, {worker.state}) is already here"
        fix = f"to bring it back or to change it, DELETE /admin/workers/{worker.worker_id} first, then POST it again"
        raise BadRequest(f"{here}: {fix}", param="worker.name" if same_name and config.name else "worker.url")
