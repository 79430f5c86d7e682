"""`/v1/kv/prefetch`: ask for a prompt's KV ahead of its turn, look what became of it, take it back."""

from __future__ import annotations

import asyncio
from array import array
from functools import partial
from typing import Annotated, ClassVar

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta, Raw

from costmodel.values import Role, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.prefetch.events import Asked, CancelJob, Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.params import Mode, PrefetchParams
from router.auth import check_client
from router.clock import Clock
from router.errors import BadRequest, PrefetchDisabled, QueueFull, UnknownPrefetch
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.kv_fields import Name, NamesPrompt, page_digests, read_body, token_ids
from router.prefetch.build import Prefetch
from router.prefetch.named_prompts import Named
from router.prefetch.subjects import engine_of, named_by_digests, named_by_ids
from router.prompts.reader import Ask
from router.turn.extend import Extender

PATH = "/v1/kv/prefetch"
_CHAT = "/v1/chat/completions"


class PrefetchBody(NamesPrompt):
    """Body of `POST /v1/kv/prefetch`."""

    messages: Raw = Raw(b"null")
    tools: Raw = Raw(b"null")  # with `messages`
    worker: Name | None = None  # `name` or `name#rank`; absent, the policy chooses
    deadline_ms: Annotated[float, Meta(gt=0, le=3_600_000)] = 30_000.0  # from now
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_bytes: Annotated[int, Meta(ge=0, le=1 << 60)] = 0

    subjects: ClassVar[tuple[str, ...]] = ("thread", "messages", "tokens", "hashes")


class PrefetchApi:
    """What the routes do, without HTTP."""

    def __init__(self, prefetch: Prefetch, fleet: Fleet, extender: Extender, clock: Clock) -> None:
        self._prefetch = prefetch
        self._fleet = fleet
        self._extender = extender
        self._clock = clock
        self._prefix = f"pf-{prefetch.life}-"

    async def ask(self, body: PrefetchBody) -> dict[str, object]:
        """What cannot be done is a job that has failed.

        Raises `BadRequest` for what cannot be known, `UnknownThread`, `ThreadWithoutPages`, `PrefetchDisabled`; `NoWorker`
        before any was discovered.
        """
        _require_enabled(self._prefetch.prefetcher.planner.params)
        worker = self._worker(body)
        subject = await self._subject(body)
        prefetcher = self._prefetch.prefetcher
        job_id = prefetcher.planner.new_job()
        deadline_ms = self._clock() + body.deadline_ms
        job = prefetcher.ask(Asked(job_id, subject, deadline_ms, worker, body.priority, body.max_bytes))
        if job is None:
            raise BadRequest("the prefetch was not taken")
        return self._view(job)

    def get(self, handle: str) -> dict[str, object]:
        return self._view(self._job(handle))

    def cancel(self, handle: str) -> dict[str, object]:
        """Cancelling what has ended is fine."""
        job = self._job(handle)
        if not job.ended:
            self._prefetch.prefetcher.cancel(CancelJob(job.id))
        return self._view(job)

    def gone(self, thread: str) -> dict[str, object]:
        """Raises `UnknownThread`."""
        self._prefetch.prefetcher.gone(self._prefetch.subjects.require_thread(thread))
        return {"thread": thread, "ended": True}

    async def _subject(self, body: PrefetchBody) -> str:
        subjects = self._prefetch.subjects
        if body.thread is not None:
            subjects.require_pages(body.thread)
            return body.thread
        board = self._prefetch.prefetcher.planner.board
        return subjects.named.add(await self._named(body), lambda subject: board.of_subject(subject) is not None)

    async def _named(self, body: PrefetchBody) -> Named:
        pool = self._pool(body.model)
        info = engine_of(pool)
        if body.has("hashes"):
            return await asyncio.to_thread(named_by_digests, pool, info, await page_digests(body.hashes))
        ids = await token_ids(body.tokens) if body.has("tokens") else await self._rendered(pool, info, body)
        return await asyncio.to_thread(named_by_ids, pool, info, ids, body.cache_salt)

    def _pool(self, model: str | None) -> Pool:
        pools = list(self._fleet.pools.values())
        return pools[0] if model is None and len(pools) == 1 else self._fleet.pool_for(model or "")

    async def _rendered(self, pool: Pool, info: EngineInfo, body: PrefetchBody) -> array[int]:
        """The token ids of a chat, as its engine makes them. Raises `QueueFull` as well."""
        prompts = self._extender.pools.get(pool.name)
        if prompts is None or prompts.reader is None:
            raise BadRequest(f"pool {pool.name!r} has no tokenizer (`prompt`): send `tokens`", param="messages")
        chat: dict[str, object] = {"model": body.model or "", "messages": body.messages}
        if body.has("tools"):
            chat["tools"] = body.tools
        ask = Ask("pf-rendered", None, _CHAT, msgspec.json.encode(chat), info, body.cache_salt)
        if not prompts.take_room(len(ask.body)):
            raise QueueFull("too many prompts are being made, or this one is too large (`prompt.queue_bytes`)")
        try:
            prompt = await prompts.run(partial(prompts.reader.extend, ask))
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # what a template makes of odd messages
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise BadRequest(f"messages: no prompt can be made of them: {what:.300}", param="messages") from error
        finally:
            prompts.give_room(len(ask.body))
        ids = prompt.state.exact_ids if prompt.state is not None else None
        if ids is None:
            raise BadRequest("token ids are not kept (`prompt.keep_ids`): send `tokens`", param="messages")
        return ids

    def _worker(self, body: PrefetchBody) -> WorkerKey | None:
        if body.worker is None:
            return None
        name, _, rank = body.worker.partition("#")
        worker = next((each for each in self._fleet.workers if each.worker_id == name), None)
        if worker is None:
            raise BadRequest(f"no worker {name!r}; GET /admin/workers lists them", param="worker")
        number = _number(rank or "0")
        key = WorkerKey(name, -1 if number is None else number)
        if worker.role is Role.DECODE or key not in worker.keys:
            raise BadRequest(f"{body.worker!r} is no worker that prefills", param="worker")
        return key

    def _job(self, handle: str) -> Job:
        known = _number(handle.removeprefix(self._prefix)) if handle.startswith(self._prefix) else None
        job = self._prefetch.prefetcher.planner.job(known) if known is not None else None
        if job is None:
            raise UnknownPrefetch(f"no prefetch {handle!r}: it never was, ended long ago, or is another gateway's")
        return job

    def _view(self, job: Job) -> dict[str, object]:
        worker = job.worker
        return {
            "id": f"{self._prefix}{job.id}",
            "object": "kv.prefetch",
            "state": job.state,
            "reason": job.reason,
            "trigger": job.trigger,
            "subject": job.subject,
            "worker": f"{worker.worker_id}#{worker.dp_rank}" if worker.dp_rank else worker.worker_id,
            "node": job.node,
            "ready_tokens": job.held_tokens if job.state in (JobState.READY, JobState.CONSUMED) else 0,
            "leased": self._prefetch.prefetcher.executor.leased(job.id),
            "warmed_tokens": job.warmed_tokens,
            "planned_bytes": job.planned_bytes,
            "moved_bytes": job.moved_bytes,
            "expires_in_ms": 0.0 if job.ended else round(max(0.0, job.expires_ms - self._clock()), 1),
        }


def _require_enabled(params: PrefetchParams) -> None:
    if params.mode is not Mode.ON:
        fix = "set it to enabled in the file and restart, or, where it was not disabled at the start, PUT /admin/prefetch"
        raise PrefetchDisabled(f"nothing is prefetched: prefetch.mode is {params.mode.value}: {fix}")
    if Trigger.EXPLICIT not in params.triggers:
        raise PrefetchDisabled(f"nothing is prefetched when asked: prefetch.triggers leaves out {Trigger.EXPLICIT.value}")


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def prefetch_router(api: PrefetchApi, api_keys: tuple[str, ...]) -> APIRouter:
    router = APIRouter()

    @router.post(PATH, status_code=202)
    async def ask(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return await api.ask(await read_body(request, PrefetchBody))

    @router.get(PATH + "/{handle}")
    async def get(request: Request, handle: str) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return api.get(handle)

    @router.delete(PATH + "/{handle}")
    async def cancel(request: Request, handle: str) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return api.cancel(handle)

    @router.delete(PATH)
    async def gone(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        thread = request.query_params.get("thread")
        if not thread:
            raise BadRequest("say which thread is over: ?thread=ID", param="thread")
        return api.gone(thread)

    return router
