"""`/v1/kv/prefetch`: ask for a prompt's KV ahead of its turn, look what became of it, take it back."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Self

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field, ValidationError, model_validator

from costmodel.values import Role, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.page.key import join_digests
from kvtier.prefetch.events import Asked, CancelJob
from kvtier.prefetch.job import Job
from router.auth import check_client
from router.clock import Clock
from router.config.tree import Section
from router.errors import BadRequest, NotServed
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.kv_fields import Name, PageHashes, TokenIds
from router.prefetch.build import Prefetch
from router.prefetch.subjects import Named, named_by_ids
from router.prompts.reader import Ask
from router.turn.extend import Extender

PATH = "/v1/kv/prefetch"
_CHAT = "/v1/chat/completions"
_PREFIX = "pf-"


class PrefetchBody(Section):
    """Body of `POST /v1/kv/prefetch`: exactly one of `thread`, `messages`, `tokens` and `hashes`."""

    thread: Name | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None  # with `messages`
    tokens: TokenIds | None = None
    hashes: PageHashes | None = None
    model: Name | None = None  # needed with all but `thread` where several pools serve
    cache_salt: Name | None = None
    worker: Name | None = None  # `name` or `name#rank`; absent, the policy chooses
    deadline_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 30_000.0  # from now
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    max_bytes: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("thread", "messages", "tokens", "hashes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of thread, messages, tokens, hashes, not {', '.join(given) or 'none'}")
        return self


class PrefetchApi:
    """What the routes do, without HTTP."""

    def __init__(self, prefetch: Prefetch, fleet: Fleet, extender: Extender, clock: Clock) -> None:
        self._prefetch = prefetch
        self._fleet = fleet
        self._extender = extender
        self._clock = clock

    async def ask(self, body: PrefetchBody) -> dict[str, object]:
        """Raises `BadRequest` for what cannot be known; what cannot be done is a job that has failed."""
        subject = body.thread if body.thread is not None else self._prefetch.subjects.name(await self._named(body))
        prefetcher = self._prefetch.prefetcher
        job_id = prefetcher.planner.new_job()
        deadline_ms = self._clock() + body.deadline_ms
        job = prefetcher.ask(Asked(job_id, subject, deadline_ms, self._worker(body), body.priority, body.max_bytes))
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
        self._prefetch.prefetcher.gone(thread)
        return {"thread": thread, "ended": True}

    async def _named(self, body: PrefetchBody) -> Named:
        pool = self._pool(body.model)
        info = _engine_of(pool)
        if body.hashes is not None:
            try:
                return Named(pool, join_digests(body.hashes), info.page_size)
            except ValueError as error:
                raise BadRequest(str(error), param="hashes") from error
        ids = body.tokens if body.tokens is not None else await self._rendered(pool, info, body)
        return named_by_ids(pool, info, ids, body.cache_salt)

    def _pool(self, model: str | None) -> Pool:
        pools = list(self._fleet.pools.values())
        return pools[0] if model is None and len(pools) == 1 else self._fleet.pool_for(model or "")

    async def _rendered(self, pool: Pool, info: EngineInfo, body: PrefetchBody) -> list[int]:
        """The token ids of a chat, as its engine makes them."""
        prompts = self._extender.pools.get(pool.name)
        if prompts is None or prompts.reader is None:
            raise BadRequest(f"pool {pool.name!r} has no tokenizer (`prompt`): send `tokens`", param="messages")
        chat: dict[str, object] = {"model": body.model or "", "messages": body.messages}
        if body.tools is not None:
            chat["tools"] = body.tools
        ask = Ask(f"{_PREFIX}rendered", None, _CHAT, msgspec.json.encode(chat), info, body.cache_salt)
        try:
            prompt = await prompts.run(partial(prompts.reader.extend, ask))
        except (ValueError, TypeError, LookupError, AttributeError) as error:  # what a template makes of odd messages
            raise BadRequest(f"the prompt cannot be derived: {error!r:.300}", param="messages") from error
        ids = prompt.state.exact_ids if prompt.state is not None else None
        if ids is None:
            raise BadRequest("token ids are not kept (`prompt.keep_ids`): send `tokens`", param="messages")
        return list(ids)

    def _worker(self, body: PrefetchBody) -> WorkerKey | None:
        if body.worker is None:
            return None
        name, _, rank = body.worker.partition("#")
        _, worker = self._fleet.find(name)
        number = _number(rank or "0")
        key = WorkerKey(name, -1 if number is None else number)
        if worker.role is Role.DECODE or key not in worker.keys:
            raise BadRequest(f"{body.worker!r} is no worker that prefills", param="worker")
        return key

    def _job(self, handle: str) -> Job:
        number = handle.removeprefix(_PREFIX)
        known = _number(number)
        job = self._prefetch.prefetcher.planner.job(known) if known is not None else None
        if job is None:
            raise NotServed(f"no prefetch {handle!r}: it never was, or ended long ago")
        return job

    def _view(self, job: Job) -> dict[str, object]:
        worker = job.worker
        return {
            "id": f"{_PREFIX}{job.id}",
            "object": "kv.prefetch",
            "state": job.state,
            "reason": job.reason,
            "trigger": job.trigger,
            "subject": job.subject,
            "worker": f"{worker.worker_id}#{worker.dp_rank}" if worker.dp_rank else worker.worker_id,
            "node": job.node,
            "ready_tokens": job.held_tokens,
            "warmed_tokens": job.warmed_tokens,
            "planned_bytes": job.planned_bytes,
            "moved_bytes": job.moved_bytes,
            "expires_in_ms": 0.0 if job.ended else round(max(0.0, job.expires_ms - self._clock()), 1),
        }


def _number(digits: str) -> int | None:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def prefetch_router(api: PrefetchApi, api_keys: tuple[str, ...]) -> APIRouter:
    router = APIRouter()

    @router.post(PATH, status_code=202)
    async def ask(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return await api.ask(_parse(await request.body()))

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


def _parse(raw: bytes) -> PrefetchBody:
    try:
        return PrefetchBody.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{path}: {first['msg']}" if path else str(first["msg"]), param=path or None) from error


def _engine_of(pool: Pool) -> EngineInfo:
    """Of any worker that prefills: they page alike."""
    infos = (worker.info for worker in pool.workers.values() if worker.role is not Role.DECODE)
    info = next((info for info in infos if info is not None), None)
    if info is None:
        raise BadRequest(f"no worker of pool {pool.name!r} has been discovered yet")
    return info
