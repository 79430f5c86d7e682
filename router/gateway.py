"""Everything the gateway is made of, wired once: `Gateway(config, clock, rng)`. No globals; two gateways fit in one process.

`hot` answers the raw API paths, `app.build_app` puts FastAPI around the rest. `start` begins to watch the workers, `close` ends
everything that was started.
"""

from __future__ import annotations

from random import Random

import httpx

from costmodel.values import Role
from kvtier.prefetch.params import Mode
from router.body.memo import PrefixMemo
from router.body.scan import Scanner
from router.clock import Clock
from router.config.tree import Config, WorkerConfig
from router.fleet.aborter import Aborter
from router.fleet.calibration_store import CalibrationStore
from router.fleet.control_transport import PooledTransport
from router.fleet.drift import DriftWatch
from router.fleet.fleet import Fleet
from router.fleet.monitor import Monitor
from router.fleet.worker import Worker
from router.loop_lag import LoopLag
from router.prefetch.build import Prefetch
from router.sharing import Sharing
from router.threads.lineage import State
from router.threads.store import ThreadStore
from router.tiers.build import Tiers
from router.turn.dispatch import Dispatcher
from router.turn.extend import Extender
from router.turn.handler import TurnHandler
from router.turn.metrics import TurnMetrics
from router.wire.upstream import UpstreamPool


class Gateway:
    def __init__(self, config: Config, clock: Clock, rng: Random) -> None:
        self.config = config
        self.clock = clock
        self.fleet = Fleet(config)
        self.calibration = CalibrationStore(config.calibration.path, config.calibration.every_s, self.fleet)
        self.calibration.load()
        self.metrics = TurnMetrics()
        scanner: Scanner[State] = Scanner(_reserved(self.fleet), PrefixMemo(config.threads.memo_checkpoints))
        self.threads = ThreadStore(scanner, max_bytes=config.threads.max_bytes, resume_gap_s=config.threads.resume_gap_s)
        self.upstream = UpstreamPool(connect_timeout_s=config.timeouts.connect_s, idle_s=config.timeouts.upstream_idle_s)
        self._control = UpstreamPool(connect_timeout_s=config.timeouts.connect_s, idle_s=config.timeouts.upstream_idle_s)
        self.http = httpx.AsyncClient(
            transport=PooledTransport(self._control), timeout=config.polls.control_timeout_s, trust_env=False
        )
        self.aborter = Aborter(self.http, config.timeouts.abort_s)
        self.monitor = Monitor(config, self.http, clock)
        self.extender = Extender(self.fleet, self.threads, asks_others=config.umbp_master is not None)
        self.loop_lag = LoopLag()
        self.drift = DriftWatch(self.fleet)
        self.tiers = Tiers(config, self.fleet, clock, remote=config.prefetch.mode is not Mode.OFF)
        self.prefetch = Prefetch(
            config,
            self.fleet,
            self.threads,
            self.extender,
            self.monitor,
            self.http,
            self.aborter,
            clock,
            self.tiers.followers.attach,
        )
        self.sharing = Sharing(config.index.redis, self.fleet, clock)
        watcher = self.prefetch.prefetcher if self.prefetch.prefetcher.on else None
        self.dispatcher = Dispatcher(config, self.upstream, self.aborter, self.threads, self.metrics, clock, rng, watcher)
        self.turns = TurnHandler(
            config,
            self.fleet,
            self.threads,
            scanner,
            self.dispatcher,
            self.extender,
            self.metrics,
            clock,
            rng,
            watcher,
            self.sharing.recall if self.sharing.on else None,
            self.tiers.consult.recall if self.tiers.consult is not None else None,
        )

    async def start(self) -> None:
        """Begin to watch every configured worker. Returns at once; `fleet.ready` tells when turns can be served."""
        for pool in self.fleet.pools.values():
            for worker in pool.workers.values():
                self.monitor.watch(pool, worker)
        self.monitor.tidy(self.fleet.pools.values())
        self.loop_lag.start()
        self.drift.start()
        self.prefetch.start()
        self.sharing.start()
        await self.tiers.start()
        self.calibration.start()

    async def close(self) -> None:
        await self.calibration.close()
        self.loop_lag.close()
        await self.drift.close()
        await self.sharing.close()
        await self.tiers.close()
        await self.prefetch.close()
        await self.monitor.close()
        await self.aborter.close()
        await self.upstream.close()
        await self._control.close()
        self.extender.close()
        await self.http.aclose()

    def add_worker(self, pool_name: str, role: Role, config: WorkerConfig) -> Worker:
        worker = self.fleet.add(pool_name, role, config)
        self.monitor.watch(self.fleet.pools[pool_name], worker)
        return worker

    async def flush_worker(self, worker_id: str, timeout_s: float) -> None:
        """Empty one engine's cache, and with it what is believed to lie there. AdapterError where that cannot be done."""
        pool, worker = self.fleet.find(worker_id)
        await worker.adapter.flush_cache(self.http, worker.endpoint, timeout_s)
        for key in worker.keys:
            pool.lineage.clear(key)

    async def remove_worker(self, worker_id: str) -> None:
        """Forget a worker at once; turns still running on it finish."""
        _, worker = self.fleet.find(worker_id)
        await self.monitor.forget(worker_id)
        self.fleet.remove(worker_id)
        self.upstream.drop_idle(worker.origin)


def _reserved(fleet: Fleet) -> frozenset[str]:
    """The body keys that some engine of the fleet reserves for the gateway."""
    return frozenset[str]().union(*(pool.adapter.reserved_keys for pool in fleet.pools.values()))
