"""What the simulated gateway knows: production's index, ledgers and estimators, fed late and started wrong.

It hears of the engines what a gateway hears: block events and load reports after a delay, first tokens and usage of its own
turns. It never sees an engine model, a plan or the future.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.simulate.pooled_runs import PooledRuns, ssd_of
from costmodel.calibrate import LinkEstimator
from costmodel.hardware import HardwarePrior
from costmodel.lesson import lesson
from costmodel.values import Decode, Fleet, Link, Prefill, PrefillRates, Residency, Role, Run, Scored, Tier, WorkerKey
from engine_adapters.base import LoadReport
from engine_adapters.emulator.model.request import Cached
from kvtier.index.convert import to_residency
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.memory import BlockIndex
from router.fleet.ledger import Ahead, Ledger, Work, doubted_at
from router.fleet.rates import Rates

_INDEX_ENTRIES = 4_000_000
_ROUTED_STRIDE = 8  # of a routed prompt's pages every eighth is remembered: prefixes are known to that grain
_NOTHING = Residency()
_MIN_DECODE_TOKENS = 8  # fewer say little about the time between tokens


class Sent(msgspec.Struct):
    """One turn that the gateway has placed. `cached` and times are filled in as the reply tells them."""

    turn: int
    prompt_tokens: int
    chosen: Scored
    sent_ms: float
    first_ms: float = 0.0
    first_batch_ms: float = 0.0  # of its decode worker, then
    prefilled: bool = False
    cached: Cached = Cached()
    sources: tuple[str, ...] = ()  # nodes of the shared pool that it reads from
    legs: tuple[Worker, Worker] | None = None  # prefill and decode, once placed


class Worker:
    """One rank's ledger and estimators, as `router.fleet.worker` keeps them."""

    def __init__(self, role: Role, belief: HardwarePrior, pool_rates: Rates) -> None:
        self.role = role
        self.ledger = Ledger()
        self.reports = Ledger()  # without bookings, for a gateway that does not predict
        self.rates = Rates(belief.prefill, belief.decode, pool_rates)
        self.transfer = LinkEstimator(belief.transfer)
        self.prefill_tokens = 0  # prompt tokens of the turns in flight on this leg
        self.decode_tokens = 0


class View:
    """`l2`: the workers have a host tier. `l3`: their nodes share a pool; `own_node`: of which only what lies on a worker's own
    node counts. All times are passed in."""

    def __init__(
        self,
        roles: Mapping[WorkerKey, Role],
        belief: HardwarePrior,
        *,
        page_tokens: int,
        l2: bool,
        l3: bool = False,
        own_node: bool = False,
        max_workers: int = 0,
        predict: bool = True,
    ) -> None:
        self._predict = predict
        self._pool_rates = pool_rates = Rates(belief.prefill, belief.decode)
        self.workers = {key: Worker(role, belief, pool_rates) for key, role in roles.items()}
        self.disaggregated = Role.PREFILL in roles.values()
        self._belief = belief
        self.page_tokens = page_tokens
        self._applied: dict[WorkerKey, int] = {}
        self._restore = {Tier.L2: belief.host} if l2 else {}
        if l3:
            self._restore[Tier.L3] = belief.pool_remote
            self._restore[Tier.L4] = belief.ssd
        self._l3 = l3
        self._own_node = own_node
        self._holder: dict[int, str] = {}  # page -> node of the shared pool
        self._disk_of: dict[int, str] = {}  # page -> node whose SSD holds it
        self._flows: dict[str, int] = {}  # node -> turns under way that read from it
        most = max_workers or len(roles)
        self._blocks = BlockIndex(_INDEX_ENTRIES, max_sources=most)
        self._routed = BlockIndex(_INDEX_ENTRIES, max_sources=most)

    def joined(self, key: WorkerKey, role: Role) -> None:
        """A new worker: of its own nothing is known, of its pool what the others have shown."""
        self.workers[key] = Worker(role, self._belief, self._pool_rates)

    def lost(self, key: WorkerKey) -> None:
        """Its connections are broken: it is no candidate any more, and what it held is forgotten."""
        del self.workers[key]
        for index in (self._blocks, self._routed):
            index.drop_source(key)
        for where in (self._holder, self._disk_of):
            for page in [page for page, node in where.items() if node == key.worker_id]:
                del where[page]

    def heard_events(self, key: WorkerKey, events: Iterable[BlockEvent], now_ms: float) -> None:
        if key not in self.workers:
            return  # lost since it said so
        for event in events:
            self._blocks.apply(key, event, now_ms)
            self._applied[key] = self._applied.get(key, 0) + 1

    def heard_pool(self, node: str, event: BlockEvent) -> None:
        """What a node's agent says of its share of L3."""
        if WorkerKey(node) not in self.workers:
            return  # lost since it said so
        if isinstance(event, BlocksStored):
            where = self._disk_of if event.tier is Tier.L4 else self._holder
            where.update(dict.fromkeys(event.hashes, node))
        elif isinstance(event, BlocksRemoved):
            where = self._disk_of if event.tier is Tier.L4 else self._holder
            for page in event.hashes:
                if where.get(page) == node:
                    del where[page]

    def heard_load(self, key: WorkerKey, report: LoadReport, now_ms: float) -> None:
        worker = self.workers.get(key)
        if worker is None:
            return
        worker.ledger.reported(report, now_ms)
        worker.reports.reported(report, now_ms)
        page = self.page_tokens
        for ledger in (worker.ledger, worker.reports):
            for tier, tell in ((Tier.L1, ledger.turned_over), (Tier.L2, ledger.host_turned_over)):
                churn = self._blocks.churn(key, tier)
                if churn is not None:
                    tell(churn.stored * page, churn.removed * page, now_ms)
        worker.rates.observe_report(report.prefill_uncached_tokens_total, report.prefill_busy_us_total, 0)
        if report.transfer_bytes_per_ms:
            worker.transfer.observe_rate(report.transfer_bytes_per_ms, report.transfer_latency_ms)

    def warming(self, key: WorkerKey, by: int) -> None:
        """So many more warm requests are at this worker, if it is still there."""
        worker = self.workers.get(key)
        if worker is not None:
            worker.ledger.warming += by
            worker.reports.warming += by

    def routed(self, pages: Sequence[int]) -> dict[WorkerKey, int]:
        """Leading tokens of this prompt that were sent to each worker before."""
        found = self._routed.leading(pages[_ROUTED_STRIDE - 1 :: _ROUTED_STRIDE])
        return {key: count * _ROUTED_STRIDE * self.page_tokens for key, count in found.items()}

    def fleet(
        self,
        pages: Sequence[int],
        prompt_tokens: int,
        routed: Mapping[WorkerKey, int],
        now_ms: float,
        *,
        new_thread: bool,
        served: tuple[WorkerKey, float] | None = None,
        allowed: frozenset[WorkerKey] | None = None,
    ) -> Fleet:
        """The candidates of this moment; of prefills only the `allowed`, if that is given.

        As in `router.turn.locate`: a known thread's residency comes from the engines' block events; a new one's blocks are not
        known yet, so that what was routed counts as resident. `served`: where and when the thread's last turn was sent.
        """
        matches = {} if new_thread else self._blocks.match(pages, now_ms)
        lineage = routed if new_thread else {}
        pooled = self._pooled(pages) if self._l3 and not new_thread else None
        prefills: list[Prefill] = []
        decodes: list[Decode] = []
        for key, worker in self.workers.items():
            match = matches.get(key)
            if match is not None:
                held = to_residency(match, self.page_tokens, prompt_tokens)
            elif key in lineage:
                held = Residency((Run(0, lineage[key], Tier.L1),), self._routed.age_ms(key, now_ms))
            else:
                held = _NOTHING
            prefill_rates = worker.rates.prefill(now_ms)
            ledger = worker.ledger if self._predict else worker.reports
            load, turns = ledger.load(now_ms, prefill_rates.ms_per_token), ledger.inflight
            if worker.role is not Role.DECODE and (allowed is None or key in allowed):
                sent, tokens = routed.get(key, 0), worker.prefill_tokens if self._predict else 0
                sources: dict[str, Link] = {}
                if pooled is not None:
                    held = pooled.behind(held, prompt_tokens, key.worker_id)
                    sources = {run.source: self._source_link(run, key.worker_id) for run in held.runs if run.source}
                if served is not None and served[0] == key:
                    held = msgspec.structs.replace(held, idle_ms=now_ms - served[1])
                answered = worker.rates.served
                prefills.append(Prefill(key, held, load, prefill_rates, self._restore, turns, tokens, sent, sources, answered))
            if worker.role is not Role.PREFILL:
                link, rates = worker.transfer.link, worker.rates.decode(now_ms)
                tokens = worker.decode_tokens if self._predict else 0
                decodes.append(Decode(key, load, rates, link, held.device_tokens, turns, tokens, worker.rates.served))
        kv_bytes = self._belief.kv_bytes_per_token
        queue, admit = self._pool_rates.queue_factor.value, self._pool_rates.admit_factor.value
        return Fleet(tuple(prefills), tuple(decodes), kv_bytes, self.disaggregated, queue, admit, self._pool_rates.reuse_share)

    def _pooled(self, pages: Sequence[int]) -> PooledRuns:
        return PooledRuns(pages, self._holder, self.page_tokens, self._disk_of, own_node=self._own_node)

    def _source_link(self, run: Run, target: str) -> Link:
        """An SSD's pages pass through it and then the way from its node; the slower counts."""
        if run.tier is not Tier.L4:
            return self.pool_link(run.source, target)
        ssd, hop = self._belief.ssd, self._belief.pool_local if run.source == ssd_of(target) else self._belief.pool_remote
        return Link(ssd.latency_ms, min(ssd.bytes_per_ms, hop.bytes_per_ms), self._flows.get(run.source, 0))

    def pool_link(self, source: str, target: str) -> Link:
        """A node's own engine copies; others pull through network cards that all readers of it share."""
        link = self._belief.pool_local if source == target else self._belief.pool_remote
        return Link(link.latency_ms, link.bytes_per_ms, self._flows.get(source, 0))

    def prefill_rates(self, node: str, now_ms: float) -> PrefillRates:
        return self.workers[WorkerKey(node)].rates.prefill(now_ms)

    def applied(self, key: WorkerKey) -> int:
        """How many block events of this worker have been heard."""
        return self._applied.get(key, 0)

    @property
    def kv_bytes_per_token(self) -> float:
        return self._belief.kv_bytes_per_token

    def ahead(self, key: WorkerKey, now_ms: float) -> Ahead:
        """Turns of ours whose prefill there is not known to be over."""
        return self.workers[key].ledger.ahead(now_ms)

    def placed(self, sent: Sent, pages: Sequence[int]) -> None:
        """Book a turn before anything is sent, so that the next decision sees it."""
        prefill, decode = sent.legs = self.workers[sent.chosen.prefill], self.workers[sent.chosen.decode]
        for node in sent.sources:
            self._flows[node] = self._flows.get(node, 0) + 1
        uncached = max(0, sent.prompt_tokens - sent.chosen.cut_tokens)
        terms = sent.chosen.terms
        work = Work(
            uncached,
            terms.compute_ms,
            terms.transfer_ms,
            sent.prompt_tokens,
            doubted_at(sent.sent_ms, terms.ttft_ms),
        )
        prefill.ledger.book_prefill(sent.turn, work, sent.sent_ms)
        decode.ledger.book_decode(sent.turn, sent.prompt_tokens, sent.sent_ms)
        prefill.prefill_tokens += sent.prompt_tokens
        decode.decode_tokens += sent.prompt_tokens
        self._routed.assume(sent.chosen.prefill, pages[_ROUTED_STRIDE - 1 :: _ROUTED_STRIDE], Tier.L1, sent.sent_ms)

    def prefilled(self, sent: Sent, now_ms: float) -> None:
        prefill, _ = self._legs(sent)
        for node in sent.sources:
            self._flows[node] -= 1
        sent.sources, sent.prefilled = (), True
        prefill.ledger.settle_prefill(sent.turn, now_ms)
        prefill.prefill_tokens -= sent.prompt_tokens

    def begun(self, sent: Sent, now_ms: float) -> None:
        """Its first token is out."""
        sent.first_ms = now_ms
        sent.first_batch_ms = self._legs(sent)[1].ledger.batch_ms(now_ms)

    def failed(self, sent: Sent, now_ms: float) -> None:
        """One of its workers was lost: settled on both legs, and nothing learned."""
        if not sent.prefilled:
            self.prefilled(sent, now_ms)
        self.abandoned(sent, now_ms)

    def abandoned(self, sent: Sent, now_ms: float) -> None:
        """The engine gave the turn up after its prefill: settled, and nothing learned."""
        _, decode = self._legs(sent)
        decode.ledger.settle_decode(sent.turn, now_ms)
        decode.decode_tokens -= sent.prompt_tokens

    def finished(self, sent: Sent, output_tokens: int, now_ms: float) -> None:
        """Settle and learn, as `router.turn.learn` does from a stream's times and usage."""
        prefill, decode = self._legs(sent)
        decode.ledger.settle_decode(sent.turn, now_ms)
        decode.decode_tokens -= sent.prompt_tokens
        for worker in {prefill, decode}:
            worker.rates.observe_served()
        ttft_ms, cached = sent.first_ms - sent.sent_ms, sent.cached.tokens
        prefill.rates.observe_reuse(sent.prompt_tokens, cached)
        told = lesson(sent.chosen.terms, ttft_ms, prefill.rates.prefill(now_ms), sent.prompt_tokens, cached)
        if told.prefill_ms is not None:
            prefill.rates.observe_prefill(sent.prompt_tokens - cached, told.prefill_ms, cached, now_ms)
        else:
            prefill.rates.observe_wait(told)
        if output_tokens >= _MIN_DECODE_TOKENS:
            decoding_ms = now_ms - sent.first_ms
            itl_ms = decoding_ms / (output_tokens - 1)
            batch = (decode.ledger.batch_ms(now_ms) - sent.first_batch_ms) / decoding_ms
            decode.rates.observe_decode(batch, itl_ms, decoding_ms, now_ms)

    def _legs(self, sent: Sent) -> tuple[Worker, Worker]:
        assert sent.legs is not None, "only turns that were placed end"
        return sent.legs
