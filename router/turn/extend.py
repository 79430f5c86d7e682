"""Step 3, off the path: a served turn's prompt is tokenised and hashed as the engine does, for the thread's next turn.

Only where the pool names a model folder. The engine says how many tokens it saw: a different count discredits the result, and
after a few the pool goes by lineage alone, and says so once. Nothing here can fail a request.
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from engine_adapters.prompt.sglang_chat import render_chat
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from kvtier.hashing.sglang import Chain, event_seed
from router.config.tree import PromptConfig
from router.dialects.dialect import DialectName
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.threads.store import ThreadStore
from router.turn.turn import Turn

_log = structlog.get_logger(__name__)
_MAX_PENDING = 64
_MAX_MISMATCHES = 3


class Prompt(msgspec.Struct, frozen=True):
    """One prompt as the engine sees it."""

    tokens: int
    blocks: array[int]  # event ids of its full pages


class PromptReader:
    """A model's template and tokenizer. Raises ValueError from the constructor when the folder lacks either."""

    def __init__(self, config: PromptConfig) -> None:
        folder = Path(config.model_dir)
        self._template = PromptTemplate.from_folder(folder)
        self._tokenizer = Tokenizer.from_folder(folder)

    def read(self, body: bytes, page_size: int, cache_salt: str | None, *, bigram: bool) -> Prompt:
        """Runs in a worker thread: rendering holds the interpreter, encoding does not. ValueError: not for this template."""
        text = render_chat(self._template, msgspec.json.decode(body))
        ids = self._tokenizer.encode_prompt(text)
        _, blocks = Chain(page_size, bigram, event_seed(cache_salt)).extend(ids)
        return Prompt(len(ids), array("q", blocks))


class Extender:
    """One bounded set of jobs for all pools. `skipped` counts prompts left out under load, `mismatches` wrong counts."""

    def __init__(self, fleet: Fleet, threads: ThreadStore) -> None:
        self._threads = threads
        self._readers: dict[str, PromptReader] = {}
        self._workers: dict[str, ThreadPoolExecutor] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self.mismatches: dict[str, int] = {}
        self.skipped = 0
        for pool in fleet.pools.values():
            if pool.config.prompt:
                self._open(pool.name, pool.config.prompt)

    def state(self, pool: Pool) -> str:
        if pool.config.prompt is None:
            return "not configured"
        if pool.name not in self._readers:
            return "unusable"
        return "discredited" if self._discredited(pool) else "exact"

    def extend(self, turn: Turn) -> None:
        """Take the job if it can be done exactly and there is room. Never waits."""
        if turn.pool.name not in self._readers or not self._suits(turn):
            return
        if len(self._jobs) >= _MAX_PENDING:
            self.skipped += 1
            return
        job = asyncio.create_task(self._extend(turn))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    def close(self) -> None:
        for job in self._jobs:
            job.cancel()
        for workers in self._workers.values():
            workers.shutdown(wait=False, cancel_futures=True)

    def _open(self, name: str, config: PromptConfig) -> None:
        try:
            self._readers[name] = PromptReader(config)
        except ValueError as error:
            _log.warning("prompt_unusable", pool=name, error=str(error), effect="residency goes by lineage")
            return
        self._workers[name] = ThreadPoolExecutor(config.threads, thread_name_prefix=f"prompt-{name}")

    def _suits(self, turn: Turn) -> bool:
        """Image blocks have no derivable id, other dialects render differently, and LoRA seeds are the engine's own."""
        members = turn.scanned.members
        return (
            turn.dialect.name is DialectName.CHAT
            and not turn.sighting.multimodal
            and isinstance(members.cache_salt, str | msgspec.UnsetType)
            and members.lora_path is msgspec.UNSET
            and not self._discredited(turn.pool)
        )

    def _discredited(self, pool: Pool) -> bool:
        return self.mismatches.get(pool.name, 0) >= _MAX_MISMATCHES

    async def _extend(self, turn: Turn) -> None:
        pool, attempt = turn.pool, turn.attempt
        info = attempt.placement.prefill.info if attempt else None
        if attempt is None or info is None or info.page_size < 1:
            return
        salt = turn.scanned.members.cache_salt
        loop = asyncio.get_running_loop()
        try:
            prompt = await loop.run_in_executor(
                self._workers[pool.name],
                lambda: self._readers[pool.name].read(
                    turn.request.body, info.page_size, salt if isinstance(salt, str) else None, bigram=info.bigram
                ),
            )
        except (ValueError, KeyError, TypeError) as error:
            self._disagree(pool, f"prompt not rendered: {error}")
            return
        usage = attempt.usage()
        counted = pool.adapter.facts(usage, None).prompt_tokens if usage is not None else prompt.tokens
        if counted != prompt.tokens:
            self._disagree(pool, f"engine counted {counted} tokens, the tokenizer {prompt.tokens}")
            return
        self._threads.extended(turn.sighting.thread, prompt.blocks, info.page_size)

    def _disagree(self, pool: Pool, what: str) -> None:
        self.mismatches[pool.name] = self.mismatches.get(pool.name, 0) + 1
        _log.warning("prompt_mismatch", pool=pool.name, what=what, count=self.mismatches[pool.name])
        if self.mismatches[pool.name] == _MAX_MISMATCHES:
            _log.error("prompt_discredited", pool=pool.name, effect="residency goes by lineage from here on")
