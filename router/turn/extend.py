"""Step 3: a turn's prompt is tokenised and hashed as the engine does, to be found in the engines' KV events.

A known thread is placed by what is known of it, and its delta runs once the turn was sent; a new conversation may wait a little
for its prompt before it is placed. What the engine counted, and whole tokenisations now and then, say how far this is trusted
(`router.prompts.trust`). Nothing here can fail a request: without a prompt a turn goes by lineage.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog

from costmodel.values import Role
from engine_adapters.base import EngineInfo, ReplyFacts
from engine_adapters.prompt.verify import Verdict
from router.config.tree import PromptConfig
from router.dialects.dialect import DialectName
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.prompts.counts import Fallback
from router.prompts.job import PromptJob
from router.prompts.pool_prompts import PoolPrompts
from router.prompts.reader import Ask, PromptReader
from router.prompts.trust import Level
from router.threads.sighting import Kind, Sighting
from router.threads.store import ThreadStore
from router.turn.turn import Turn

_log = structlog.get_logger(__name__)
_NO_BLOCKS = array("q")
_UNKNOWN_SHARE = 0.5  # of a new conversation, above which its lineage says too little of where it lies


class Extender:
    """`extend` at dispatch, `finished` when the reply is over; `prepare` before dispatch where `wants_first` says so."""

    def __init__(self, fleet: Fleet, threads: ThreadStore, *, asks_others: bool = False) -> None:
        """`asks_others`: somebody else knows what lies where, by blocks."""
        self._asks_others = asks_others
        self._threads = threads
        self._tasks: set[asyncio.Task[None]] = set()
        self.pools = {
            pool.name: _open(pool, pool.config.prompt) for pool in fleet.pools.values() if pool.config.prompt is not None
        }

    @property
    def busy(self) -> bool:
        """Whether some prompt is being made, compared or verified."""
        return bool(self._tasks)

    def state(self, pool: Pool) -> str:
        prompts = self.pools.get(pool.name)
        return "not configured" if prompts is None else prompts.state

    def wants_first(self, turn: Turn) -> bool:
        """Whether placing this turn should wait for its prompt: nearly nothing is known of where it lies, or its ids are to be
        sent along."""
        prompts = self.pools.get(turn.pool.name)
        if prompts is None or prompts.reader is None or prompts.config.cold_deadline_ms <= 0:
            return False
        if prompts.config.forward_ids and turn.dialect.name is DialectName.CHAT:
            trust = prompts.trust(turn.scanned.model, turn.request.path)
            if trust.level_of(turn.sighting.thread) is Level.EXACT and trust.proven(turn.sighting.thread):
                return True
        return _cold(turn.sighting) and (self._asks_others or bool(turn.pool.blocks.sources))

    async def prepare(self, turn: Turn) -> None:
        """Wait for the prompt, up to the deadline; the turn is then placed by it. A prompt that comes later still counts."""
        self.extend(turn)
        prompts, job = self.pools[turn.pool.name], turn.prompt
        if job is None or job.task is None or not (job.wants_ids or _cold(turn.sighting)):
            return
        await asyncio.wait((job.task,), timeout=prompts.config.cold_deadline_ms / 1000)
        prompt = job.prompt
        if prompt is None:
            if not job.refusal:
                prompts.counts.fallbacks[Fallback.LATE] += 1
            return
        turn.sighting = msgspec.structs.replace(
            turn.sighting, blocks=prompt.blocks, block_tokens=prompt.page_size, prompt_tokens=prompt.tokens
        )

    def extend(self, turn: Turn) -> None:
        """Take the job if the prompt can be derived and there is room. Never waits."""
        prompts = self.pools.get(turn.pool.name)
        if prompts is None or turn.prompt is not None:
            return
        fallback = self._take(prompts, turn)
        if fallback is not None:
            prompts.counts.fallbacks[fallback] += 1

    def finished(self, turn: Turn, facts: ReplyFacts | None, *, served: bool) -> None:
        """The reply is over. Only a served one tells whether the prompt was right."""
        prompts, job = self.pools.get(turn.pool.name), turn.prompt
        if prompts is None or job is None or not served:
            return
        prompts.counts.forwarded += job.forwarded
        job.counted = facts.prompt_tokens if facts is not None else 0
        if job.prompt is not None or job.refusal:
            self._settle(prompts, turn, job)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for prompts in self.pools.values():
            prompts.close()

    def _take(self, prompts: PoolPrompts, turn: Turn) -> Fallback | None:
        """Start the job, or say why not."""
        reader, info = prompts.reader, _engine_of(turn)
        if reader is None:
            return Fallback.UNUSABLE
        if info is None or not reader.takes(turn.request.path) or not _suits(turn):
            return Fallback.UNSUITED
        trust = prompts.trust(turn.scanned.model, turn.request.path)
        level = trust.level_of(turn.sighting.thread)
        if level is Level.LINEAGE:
            return Fallback.LINEAGE
        if not prompts.take_room(len(turn.request.body)):
            return Fallback.BUSY
        job = turn.prompt = PromptJob(_ask(turn, info), trust, level)
        job.wants_ids = (
            prompts.config.forward_ids and turn.dialect.name is DialectName.CHAT and trust.forwards(turn.sighting.thread)
        )
        job.task = self._start(self._make(prompts, reader, turn, job))
        return Fallback.WHOLE if level is Level.WHOLE else None

    async def _make(self, prompts: PoolPrompts, reader: PromptReader, turn: Turn, job: PromptJob) -> None:
        work = reader.whole if job.level is Level.WHOLE else reader.extend
        counts = prompts.counts
        try:
            prompt = await prompts.run(partial(work, job.ask))
            if job.wants_ids:
                job.ids = await prompts.run(prompt.ids_json)
        except ValueError as error:
            job.refusal = str(error)
        except Exception:  # noqa: BLE001  the root of this task: a turn must not fail for want of a prompt
            if prompts.crashed():
                _log.exception("prompt_crashed", pool=prompts.name, thread=job.ask.thread)
            job.refusal = "the gateway could not derive it"
        else:
            job.prompt = prompt
            counts.made[job.level] += 1
            counts.took(prompt.cpu_ms)
            self._threads.extended(job.ask.thread, prompt.blocks, prompt.page_size)
        finally:
            prompts.give_room(len(job.ask.body))
        if job.counted is not None:
            self._settle(prompts, turn, job)

    def _settle(self, prompts: PoolPrompts, turn: Turn, job: PromptJob) -> None:
        """Both the prompt and the engine's reply are there."""
        prompt, counts, counted = job.prompt, prompts.counts, job.counted
        if prompt is None:
            counts.fallbacks[Fallback.REFUSED] += 1
            self._demote(prompts, job, lambda: job.trust.refused(job.ask.thread, job.refusal))
        elif counted and counted != prompt.tokens:
            counts.fallbacks[Fallback.COUNT] += 1
            counts.compared["count", "wrong"] += 1
            what = f"the engine counted {counted} tokens, we {prompt.tokens}"
            self._distrust(prompts, job, what)
            self._start(self._explain(prompts, job, what))
        elif counted:
            counts.compared["count", "right"] += 1
            if not job.forwarded:
                job.trust.agree(job.ask.thread)
            self._look_for(prompts, turn, job)
            if job.level is Level.EXACT and job.trust.due():
                self._start(self._verify(prompts, job))

    async def _verify(self, prompts: PoolPrompts, job: PromptJob) -> None:
        """Off the path: the whole prompt, tokenised anew, must be what the delta was."""
        if prompts.verifying:
            job.trust.postpone()
            return
        verdict = await self._verdict(prompts, job)
        if verdict is None:
            return
        prompts.counts.compared["whole", "right" if verdict.right else "wrong"] += 1
        if verdict.right:
            job.trust.verified += 1
            return
        prompts.counts.fallbacks[Fallback.DIFFERS] += 1
        what = f"whole tokenisation differs from token {verdict.differs_at} on"
        self._distrust(prompts, job, what)
        self._tell(prompts, job, what, verdict)

    async def _explain(self, prompts: PoolPrompts, job: PromptJob, what: str) -> None:
        """Where a prompt went wrong that the engine counted otherwise."""
        verdict = None if prompts.verifying else await self._verdict(prompts, job)
        self._tell(prompts, job, what, verdict)

    async def _verdict(self, prompts: PoolPrompts, job: PromptJob) -> Verdict | None:
        reader, prompt = prompts.reader, job.prompt
        if reader is None or prompt is None or prompt.state is None:
            return None
        prompts.verifying = True
        try:
            return await prompts.run_verification(partial(reader.verify, job.ask, prompt.state))
        except Exception:  # noqa: BLE001  the root of both tasks that verify
            if prompts.crashed():
                _log.exception("prompt_crashed", pool=prompts.name, thread=job.ask.thread)
            return None
        finally:
            prompts.verifying = False

    def _distrust(self, prompts: PoolPrompts, job: PromptJob, what: str) -> None:
        self._demote(prompts, job, lambda: job.trust.wrong(job.ask.thread, job.level, what))

    def _demote(self, prompts: PoolPrompts, job: PromptJob, demote: Callable[[], None]) -> None:
        """The thread's blocks are not believed any more; perhaps the model's are not either."""
        before = job.trust.level
        demote()
        if prompts.reader is not None:
            prompts.reader.forget(job.ask.thread)
        self._threads.extended(job.ask.thread, _NO_BLOCKS, 0)
        self._tell_level(prompts, job, before)

    def _look_for(self, prompts: PoolPrompts, turn: Turn, job: PromptJob) -> None:
        """The engine has computed the last prompt but one: its events name the first block, or our ids are not the engine's.
        Those of the prompt that was computed just now may still be on their way."""
        prompt, attempt, trust = job.prompt, turn.attempt, job.trust
        if prompt is None or attempt is None or not len(prompt.blocks):
            return
        computed, trust.computed = trust.computed, (attempt.placement.decision.chosen.prefill, prompt.blocks[:1])
        before, blocks = trust.level, turn.pool.blocks
        if computed is not None and blocks.speaks_for(computed[0]):
            trust.looked_for(seen=computed[0] in blocks.match(computed[1], 0.0))
            self._tell_level(prompts, job, before)

    def _tell(self, prompts: PoolPrompts, job: PromptJob, what: str, verdict: Verdict | None) -> None:
        if verdict is not None and verdict.right:
            what += "; whole tokenisation gives the same: template, tokenizer or profile is not the engine's"
        _log.warning(
            "prompt_mismatch",
            pool=prompts.name,
            thread=job.ask.thread,
            path=job.ask.path,
            what=what,
            differs_at=verdict.differs_at if verdict is not None else None,
            count=job.trust.mismatches,
        )

    def _tell_level(self, prompts: PoolPrompts, job: PromptJob, before: Level) -> None:
        trust = job.trust
        if trust.level is not before:
            effect = "all its prompts are tokenised whole" if trust.level is Level.WHOLE else "residency goes by lineage"
            _log.error("prompt_discredited", pool=prompts.name, path=job.ask.path, reason=trust.reason, effect=effect)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _open(pool: Pool, config: PromptConfig) -> PoolPrompts:
    try:
        return PoolPrompts(pool.name, config, PromptReader(pool.config.engine, config))
    except (ValueError, OSError) as error:
        _log.warning("prompt_unusable", pool=pool.name, error=str(error), effect="residency goes by lineage")
        return PoolPrompts(pool.name, config, None, str(error))


def _suits(turn: Turn) -> bool:
    """Image blocks have no derivable id, a LoRA adapter's or namespace's KV is told apart from others by its engine alone, a
    stored conversation is known to its engine only, and Anthropic's protocol knows no salt."""
    members = turn.scanned.members
    salted = members.cache_salt is not msgspec.UNSET
    return (
        not turn.sighting.multimodal
        and (not salted or (isinstance(members.cache_salt, str) and turn.dialect.name is not DialectName.MESSAGES))
        and members.lora_path is msgspec.UNSET
        and members.extra_key is msgspec.UNSET
        and not isinstance(members.previous_response_id, str)
    )


def _cold(sighting: Sighting) -> bool:
    return (
        sighting.kind is Kind.NEW
        and not len(sighting.blocks)
        and sighting.known_tokens < sighting.prompt_tokens * (1 - _UNKNOWN_SHARE)
    )


def _ask(turn: Turn, info: EngineInfo) -> Ask:
    sighting, salt = turn.sighting, turn.scanned.members.cache_salt
    origin = sighting.parent if sighting.kind in (Kind.FORK, Kind.COMPACTED) else None
    path, body = turn.request.path, turn.request.body
    return Ask(sighting.thread, origin, path, body, info, salt if isinstance(salt, str) else None)


def _engine_of(turn: Turn) -> EngineInfo | None:
    """The engine that computes the prompt; before it is chosen any of the pool that could, as they page alike."""
    if turn.attempt is not None:
        return turn.attempt.placement.prefill.info
    workers = turn.pool.workers.values()
    return next((worker.info for worker in workers if worker.role is not Role.DECODE and worker.info is not None), None)
