"""One engine server as the gateway sees it: what was discovered, its state, its ranks' ledgers and its measured rates."""

from __future__ import annotations

import asyncio
from enum import StrEnum

import msgspec

from costmodel.calibrate import LinkEstimator
from costmodel.calibration import Calibration
from costmodel.restore import LegView, RestoreLinks
from costmodel.values import Role, WorkerKey
from engine_adapters.base import Endpoint, EngineAdapter, EngineInfo, LoadReport
from router.config.tree import BreakerConfig, HardwareConfig, WorkerConfig
from router.fleet.breaker import Breaker
from router.fleet.ledger import Ledger
from router.fleet.rates import Rates
from router.wire.upstream import Origin


class WorkerState(StrEnum):
    STARTING = "starting"  # not discovered yet
    READY = "ready"
    DOWN = "down"  # was ready, does not answer now
    DRAINING = "draining"  # takes no new turns; its streams run out


_READY = WorkerState.READY


class Worker:
    """Mutable, owned by its pool. `ranks[r]` is the ledger of data-parallel rank r."""

    def __init__(
        self,
        role: Role,
        config: WorkerConfig,
        adapter: EngineAdapter,
        hardware: HardwareConfig,
        breaker: BreakerConfig,
        pool_rates: Rates,
    ) -> None:
        self.worker_id = config.worker_id
        self.role = role
        self.config = config
        self.adapter = adapter
        self.origin = Origin.parse(config.url)
        self.host_field = self.origin.authority.encode()
        self.endpoint = Endpoint(config.url, config.api_key, config.admin_key)
        self.node = config.node or self.origin.host
        self.info: EngineInfo | None = None
        self.page_size = 0  # tokens; 0 = not known
        self.state = WorkerState.STARTING
        self.breaker = Breaker(failures=breaker.failures, window_ms=breaker.window_s * 1000, open_ms=breaker.open_s * 1000)
        self.keys: tuple[WorkerKey, ...] = (WorkerKey(self.worker_id, 0),)
        self.ranks: list[Ledger] = [Ledger()]
        self.ranked = tuple(zip(self.keys, self.ranks, strict=True))
        self.rates = Rates(hardware.prefill_prior(), hardware.decode_prior(), pool_rates)
        self.links = RestoreLinks(hardware.restore_prior())
        self.transfer = LinkEstimator(hardware.pd_link.as_link())
        self.last_fault = ""
        self.doubted = asyncio.Event()  # something refused to connect: look now whether it is alive
        self.full_until_ms = 0.0  # it was too busy or not there: left out until then while another is not

    @property
    def inflight(self) -> int:
        return sum(rank.inflight for rank in self.ranks)

    def discovered(self, info: EngineInfo) -> tuple[WorkerKey, ...]:
        """Take over what discovery found. Returns the keys of ranks that are no more, for the caller to forget.

        New ranks get fresh ledgers. Turns that are still booked on a rank that is gone hold its ledger themselves.
        """
        self.info = info
        self.rates.served = 0
        self.page_size = info.page_size
        size = max(info.dp_size, 1)
        gone = self.keys[size:]
        del self.ranks[size:]
        self.ranks += [Ledger() for _ in range(size - len(self.ranks))]
        self.keys = tuple(WorkerKey(self.worker_id, rank) for rank in range(size))
        self.ranked = tuple(zip(self.keys, self.ranks, strict=True))
        if self.state is not WorkerState.DRAINING:
            self.state = WorkerState.READY
        return gone

    def takes_turns(self, now_ms: float) -> bool:
        return self.state is _READY and self.breaker.allows(now_ms)

    @property
    def takes_turns_in_need(self) -> bool:
        """Where no other of its role is left: its breaker may be open, if it was not for want of an answer."""
        return self.state is WorkerState.READY and self.breaker.answers

    def restarted(self, report: LoadReport) -> bool:
        """Whether an engine's counters say that it is not the process that the last report came from."""
        before = self.ranks[report.dp_rank].report if 0 <= report.dp_rank < len(self.ranks) else None
        if before is None or before.prefill_uncached_tokens_total is None:
            return False
        return (report.prefill_uncached_tokens_total or 0) < before.prefill_uncached_tokens_total

    def reported(self, report: LoadReport, now_ms: float) -> None:
        if 0 <= report.dp_rank < len(self.ranks):
            self.ranks[report.dp_rank].reported(report, now_ms)
            self.rates.observe_report(report.prefill_uncached_tokens_total, report.prefill_busy_us_total, report.dp_rank)
            if report.transfer_bytes_per_ms:
                self.transfer.observe_rate(report.transfer_bytes_per_ms, report.transfer_latency_ms)

    @property
    def restoring(self) -> list[LegView]:
        """What its restores are believed to take; a decode worker makes none."""
        return self.links.views() if self.role is not Role.DECODE else []

    def calibration(self) -> Calibration:
        learned = self.rates.calibration()
        return msgspec.structs.replace(learned, transfer=self.transfer.link, restore=self.links.known())

    def restore(self, known: Calibration) -> None:
        self.rates.restore(known)
        self.links.start_from(known.restore)
        if known.transfer is not None and known.transfer.bytes_per_ms > 0:
            self.transfer = LinkEstimator(known.transfer)

    @property
    def bootstrap_host(self) -> str:
        return self.config.bootstrap_host or self.origin.host

    @property
    def bootstrap_port(self) -> int | None:
        return self.config.bootstrap_port or (self.info.bootstrap_port if self.info else None)
