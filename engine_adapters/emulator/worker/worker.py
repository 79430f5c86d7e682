"""One emulated worker: its engine in real time, its model folder, its events, faults and journal, with no HTTP in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.emulator.model.request import (
    Allocated,
    EngineRequest,
    Finished,
    FinishReason,
    Namespace,
    Outcome,
    Progress,
    Transferred,
)
from engine_adapters.emulator.worker import failures
from engine_adapters.emulator.worker.agent_pool import AgentPool
from engine_adapters.emulator.worker.driver import EngineDriver, Failure, OutcomeQueue
from engine_adapters.emulator.worker.faults import FaultPlan
from engine_adapters.emulator.worker.job import Finish, Job, Step
from engine_adapters.emulator.worker.journal import Journal
from engine_adapters.emulator.worker.kv_publisher import KvPublisher
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.emulator.worker.prefill_link import PrefillGone, PrefillLink
from engine_adapters.emulator.worker.rooms import Rooms
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from kvtier.hashing.sglang import Chain, event_seed, storage_seed


class Worker:
    """Raises ValueError at construction when the model folder is unusable."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.params = options.params
        self.tokenizer = Tokenizer.from_folder(options.model_folder)
        self.template = PromptTemplate.from_folder(options.model_folder)
        self.faults = FaultPlan()
        self.journal = Journal()
        self.started_s = time.time()
        self.publisher = KvPublisher(
            options.kv_port, options.kv_replay_port, self.params.page_tokens, options.kv_topic, options.kv_buffer_steps
        )
        self.pool = _pool(options)
        self.driver = EngineDriver(EngineModel(self.params, self.pool), _now_ms, self.publisher.publish)
        self.rooms = Rooms(self.driver.pair)
        self._paired: dict[str, Job] = {}  # disaggregated requests that are here now
        self._link = PrefillLink(options.bootstrap_port, options.handshake_attempts, options.handshake_gap_ms)

    async def start(self) -> None:
        await self.publisher.start()
        if self.pool is not None:
            await self.pool.start(self.driver.resume)
        self.driver.flush()  # a cache announces itself empty, as sequence number 0

    async def stop(self) -> None:
        self.driver.close()
        if self.pool is not None:
            await asyncio.to_thread(self.pool.close)
        await self.publisher.stop()

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[Step]:
        """Compute `jobs`; ends when the last has finished. Closing the iterator aborts what is left.

        Raises Failure when a job cannot be completed, or `refused` when it can never run here.
        """
        queue = OutcomeQueue()
        submitted: list[Job] = []
        open_jobs: dict[str, Job] = {}
        transfers: list[asyncio.Task[None]] = []
        try:
            for job in jobs:
                self._submit(job, queue)
                submitted.append(job)
                open_jobs[job.rid] = job
            while open_jobs:
                outcome = await self._next(queue, open_jobs)
                job = open_jobs[outcome.rid]
                if isinstance(outcome, Allocated):
                    transfers.append(asyncio.create_task(self._await_kv(job, outcome.resident_tokens), name=f"kv-{job.rid}"))
                elif isinstance(outcome, Transferred):
                    self._deliver(job, outcome)
                elif isinstance(outcome, Progress) and outcome.output_tokens < self._spoken(job):
                    yield Step(job, outcome.output_tokens, outcome.cached)
                elif isinstance(outcome, Finished):
                    del open_jobs[outcome.rid]
                    finish = self._finish(job, outcome)
                    yield Step(job, outcome.output_tokens, outcome.cached, finish)
        finally:
            for task in transfers:
                task.cancel()
            for job in submitted:
                self._leave(job)
            await asyncio.gather(*transfers, return_exceptions=True)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """Abort every request whose id starts with `rid`, as SGLang does."""
        for known in self.driver.rids:
            if everything or known.startswith(rid):
                message = self._abort_message(known)
                if message is None:
                    self.driver.abort(known)
                else:
                    self.driver.fail(known, Failure(500, message))

    def _abort_message(self, rid: str) -> str | None:
        """How a pair that is not yet joined fails when one half is aborted; None where the reply merely ends early."""
        job, stage = self._paired.get(rid), self.driver.model.stage(rid)
        if job is None:
            return None
        if stage is Stage.BOOTSTRAP:
            return failures.bootstrap_failed(job)
        if stage is Stage.SENDING:
            return failures.sending_failed(job, "Aborted by AbortReq.")
        if stage in (Stage.PREALLOC, Stage.RECEIVING):
            return failures.transfer_failed(job, "Aborted by AbortReq.")
        return None

    async def flush(self, timeout_s: float) -> bool:
        """Empty the cache as soon as the engine is idle; False when it is not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.driver.flush():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def _submit(self, job: Job, queue: OutcomeQueue) -> None:
        if job.refusal is not None:
            raise Failure(400, job.refusal, refused=True)
        disaggregated = self.params.role is not EngineRole.UNIFIED
        if disaggregated and job.bootstrap is None:
            raise Failure(
                400, f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={job.rid!r}"
            )
        if len(self.driver.rids) >= self.options.max_requests:
            raise Failure(503, "The request queue is full.")
        if job.rid in self.driver.model:
            raise Failure(400, f"Duplicate request ID detected: {job.rid}", refused=True)
        try:
            self.driver.submit(self._request(job), queue)
        except ValueError as error:
            raise Failure(400, str(error), refused=True) from error
        if job.bootstrap is not None and not job.bootstrap.fake:
            self._paired[job.rid] = job
            if self.params.role is EngineRole.PREFILL:
                self.rooms.announce(job.bootstrap.room, job.rid)

    def _deliver(self, job: Job, outcome: Transferred) -> None:
        """Prefill half: hand the KV over, or fail as the engine does when the decode half has gone."""
        if job.bootstrap is not None and not self.rooms.deliver(job.bootstrap.room, outcome.cached):
            raise Failure(500, failures.sending_failed(job, "Failed due to an unknown reason from another rank"))

    async def _next(self, queue: OutcomeQueue, open_jobs: dict[str, Job]) -> Outcome:
        """The next outcome; a prefill half that waits for its partner gives up after a time."""
        waits = [rid for rid in open_jobs if self.driver.model.stage(rid) is Stage.BOOTSTRAP]
        if not waits:
            return await queue.get()
        try:
            async with asyncio.timeout(self.options.pair_timeout_ms / 1000.0):
                return await queue.get()
        except TimeoutError as error:
            job = open_jobs[waits[0]]
            raise Failure(500, failures.bootstrap_timed_out(job, self.options.pair_timeout_ms / 1000.0)) from error

    async def _await_kv(self, job: Job, resident_tokens: int) -> None:
        """Decode half: wait for the prefill half's KV and tell the engine. Some KV never comes, as with the real engine."""
        assert job.bootstrap is not None
        try:
            async with asyncio.timeout(self.options.pair_timeout_ms / 1000.0):
                result = await self._link.await_kv(job.bootstrap, resident_tokens)
        except TimeoutError:
            self.driver.fail(job.rid, Failure(500, failures.transfer_timed_out(job, self.options.pair_timeout_ms / 1000.0)))
            return
        except PrefillGone as gone:
            if gone.reached:
                await asyncio.sleep(self.options.lost_peer_ms / 1000.0)
            message = failures.peer_lost(job, gone.address) if gone.reached else failures.handshake_failed(job)
            self.driver.fail(job.rid, Failure(500, message))
            return
        if result.error is not None:
            self.driver.fail(job.rid, Failure(500, failures.transfer_failed(job, result.error)))
        elif job.bootstrap.room != 0 and job.samples == 1:
            self.driver.receive(job.rid, result.cached)

    def _leave(self, job: Job) -> None:
        """Whatever is left of a job ends here."""
        self.driver.abort(job.rid)
        self._paired.pop(job.rid, None)
        if self.params.role is EngineRole.PREFILL and job.bootstrap is not None:
            self.rooms.leave(job.bootstrap.room, job.rid)

    def _spoken(self, job: Job) -> int:
        return 1 if self.params.role is EngineRole.PREFILL else len(job.plan.token_ids)

    def _request(self, job: Job) -> EngineRequest:
        tokens = job.prompt_ids + job.plan.token_ids[:-1]
        fake = job.bootstrap is not None and job.bootstrap.fake
        namespace = Namespace(job.extra_key, job.cache_salt)
        return EngineRequest(
            rid=job.rid,
            prompt_tokens=len(job.prompt_ids),
            output_tokens=self._spoken(job),
            max_new_tokens=job.max_tokens,
            pages=self._pages(tokens, namespace),
            tokens=tokens if self.publisher.enabled else None,
            namespace=namespace,
            keep=not fake,
            paired=job.bootstrap is not None and not fake,
        )

    def _pages(self, tokens: tuple[int, ...], namespace: Namespace) -> tuple[int, ...]:
        """Event ids of the full pages; the pool learns their names in storage, which are of another chain where salted."""
        page, (extra_key, salt) = self.params.page_tokens, namespace
        chain, digests = Chain(page, digest=event_seed(salt)).extend_digests(tokens)
        pages = tuple(chain.ids(digests))
        if self.pool is not None:
            seed = storage_seed(extra_key, salt)
            self.pool.name(namespace, pages, Chain(page, digest=seed).extend_digests(tokens)[1] if seed else digests)
        return pages

    def _finish(self, job: Job, outcome: Finished) -> Finish:
        if outcome.reason is FinishReason.ABORT_QUEUED:
            return Finish("abort", message="Abort in waiting queue", unseen=True)
        if outcome.reason is FinishReason.ABORT:
            return Finish("abort", message="Aborted")
        if self.params.role is EngineRole.PREFILL:
            return Finish("length", length=0)
        if job.plan.ends:
            return Finish("stop", matched=self.tokenizer.eos_token_id)
        return Finish("length", length=len(job.plan.token_ids))


def _pool(options: WorkerOptions) -> AgentPool | None:
    params = options.params
    if options.l3_socket is None:
        return None
    page, most_names = params.page_tokens, 4 * (params.kv_tokens + params.host_kv_tokens) // params.page_tokens
    return AgentPool(options.l3_socket, options.served_model_name, page, params.kv_bytes_per_token, most_names)


def _now_ms() -> float:
    return time.monotonic() * 1000.0
