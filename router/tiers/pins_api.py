"""`/v1/kv/pins`: keep a prompt's pages in the nodes' DRAM for a while, look what is kept, let go."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta

from router.auth import check_client
from router.clock import Clock
from router.errors import BadRequest
from router.fleet.fleet import Fleet
from router.fleet.followers import serves
from router.fleet.pool import Pool
from router.kv_fields import Name, NamesPrompt, page_digests, read_body, token_ids
from router.prefetch.subjects import Subjects, engine_of, named_by_ids
from router.tiers.pin_book import Pin, PinBook

PATH = "/v1/kv/pins"


class PinBody(NamesPrompt):
    """Body of `POST /v1/kv/pins`."""

    node: Name | None = None  # absent: on every node that has any of it
    ttl_s: Annotated[float, Meta(gt=0)] = 600.0


class PinsApi:
    """What the routes do, without HTTP."""

    def __init__(self, book: PinBook, fleet: Fleet, subjects: Subjects, clock: Clock) -> None:
        self._book = book
        self._fleet = fleet
        self._subjects = subjects
        self._clock = clock

    async def add(self, body: PinBody) -> dict[str, object]:
        """Raises `BadRequest` for a prompt that cannot be named, `UnknownThread`, `ThreadWithoutPages`, `NoWorker`, and what
        `PinBook.add` raises."""
        pool, digests = await self._named(body)
        subject = body.thread or ("tokens" if body.has("tokens") else "hashes")
        names = () if body.node is None else (body.node,)
        pin = await self._book.add(subject, digests, pool.blocks, partial(serves, pool), body.ttl_s, names)
        return self.view(pin)

    def view(self, pin: Pin) -> dict[str, object]:
        return {
            "id": pin.id,
            "object": "kv.pin",
            "subject": pin.subject,
            "pages": pin.pages,
            "expires_in_s": round(max(0.0, pin.expires_ms - self._clock()) / 1000, 3),
            "nodes": [
                {"node": name, "status": held.status.name, "pages": held.pages, "fault": held.fault}
                for name, held in pin.nodes.items()
            ],
        }

    async def _named(self, body: PinBody) -> tuple[Pool, bytes]:
        if body.thread is not None:
            prompt = self._subjects.require_pages(body.thread)
            digests = await self._subjects.digests(body.thread, 0, prompt.tokens)
            if not digests:
                raise BadRequest(f"the token ids of thread {body.thread!r} are not kept here: send `tokens`", param="thread")
            return prompt.pool, digests
        pools = list(self._fleet.pools.values())
        pool = pools[0] if body.model is None and len(pools) == 1 else self._fleet.pool_for(body.model or "")
        if body.has("hashes"):
            return pool, await page_digests(body.hashes)
        info, ids = engine_of(pool), await token_ids(body.tokens)
        return pool, (await asyncio.to_thread(named_by_ids, pool, info, ids, body.cache_salt)).digests


def pins_router(api: PinsApi, book: PinBook, api_keys: tuple[str, ...]) -> APIRouter:
    router = APIRouter()

    @router.post(PATH, status_code=201)
    async def add(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return await api.add(await read_body(request, PinBody))

    @router.get(PATH)
    async def every(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return {"object": "list", "data": [api.view(pin) for pin in book.listed()]}

    @router.get(PATH + "/{pin_id}")
    async def one(request: Request, pin_id: str) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return api.view(book.get(pin_id))

    @router.delete(PATH + "/{pin_id}")
    async def remove(request: Request, pin_id: str) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return api.view(await book.remove(pin_id))

    return router
