"""One emulated worker: its engine in real time, its model folder, its events, faults and journal, with no HTTP in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.emulator.model.request import EngineRequest, Finished, FinishReason, Progress
from engine_adapters.emulator.worker.driver import EngineDriver, OutcomeQueue
from engine_adapters.emulator.worker.faults import FaultPlan
from engine_adapters.emulator.worker.job import Finish, Job, Step
from engine_adapters.emulator.worker.journal import Journal
from engine_adapters.emulator.worker.kv_publisher import KvPublisher
from engine_adapters.emulator.worker.options import WorkerOptions
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from kvtier.hashing.sglang import event_ids


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
        self.driver = EngineDriver(EngineModel(self.params), _now_ms, self.publisher.publish)

    async def start(self) -> None:
        await self.publisher.start()
        if self.params.keeps_cache:
            self.driver.flush()  # the engine's cache announces itself empty, as sequence number 0

    async def stop(self) -> None:
        self.driver.close()
        await self.publisher.stop()

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[Step]:
        """Compute `jobs`; ends when the last has finished. Closing the iterator aborts what is left.

        Raises Failure (a job cannot be completed) and ValueError (it can never run here).
        """
        queue = OutcomeQueue()
        open_jobs = {job.rid: job for job in jobs}
        try:
            for job in jobs:
                self.driver.submit(self._request(job), queue)
            while open_jobs:
                outcome = await queue.get()
                job = open_jobs[outcome.rid]
                if isinstance(outcome, Progress) and outcome.output_tokens < self._spoken(job):
                    yield Step(job, outcome.output_tokens, outcome.cached.device, outcome.cached.host)
                elif isinstance(outcome, Finished):
                    del open_jobs[outcome.rid]
                    finish = self._finish(job, outcome)
                    yield Step(job, outcome.output_tokens, outcome.cached.device, outcome.cached.host, finish)
        finally:
            for rid in open_jobs:
                self.driver.abort(rid)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """Abort every request whose id starts with `rid`, as SGLang does."""
        for known in self.driver.rids:
            if everything or known.startswith(rid):
                self.driver.abort(known)

    async def flush(self, timeout_s: float) -> bool:
        """Empty the cache as soon as the engine is idle; False when it is not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self.driver.flush():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def _spoken(self, job: Job) -> int:
        return 1 if self.params.role is EngineRole.PREFILL else len(job.plan.token_ids)

    def _request(self, job: Job) -> EngineRequest:
        tokens = job.prompt_ids + job.plan.token_ids[:-1]
        pages = event_ids(tokens, self.params.page_tokens, cache_salt=job.cache_salt)
        return EngineRequest(
            rid=job.rid,
            prompt_tokens=len(job.prompt_ids),
            output_tokens=self._spoken(job),
            max_new_tokens=job.max_tokens,
            pages=pages,
            tokens=tokens,
            namespace=f"{job.extra_key or ''}\0{job.cache_salt or ''}",
        )

    def _finish(self, job: Job, outcome: Finished) -> Finish:
        if outcome.reason is FinishReason.ABORT:
            return Finish("abort", message="Aborted")
        if self.params.role is EngineRole.PREFILL:
            return Finish("length", length=0)
        if job.plan.ends:
            return Finish("stop", matched=self.tokenizer.eos_token_id)
        return Finish("length", length=len(job.plan.token_ids))


def _now_ms() -> float:
    return time.monotonic() * 1000.0
