"""`/v1/kv/pins`: keep a prompt's pages in the nodes' DRAM for a while, look what is kept, let go."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Self

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError, model_validator

from costmodel.values import Role
from kvtier.page.key import join_digests
from router.auth import check_client
from router.clock import Clock
from router.config.tree import Section
from router.errors import BadRequest
from router.fleet.fleet import Fleet
from router.fleet.followers import serves
from router.fleet.pool import Pool
from router.kv_fields import Name, PageHashes, TokenIds
from router.prefetch.subjects import Subjects, named_by_ids
from router.tiers.pin_book import Pin, PinBook

PATH = "/v1/kv/pins"


class PinBody(Section):
    """Body of `POST /v1/kv/pins`: exactly one of `thread`, `tokens` and `hashes`."""

    thread: Name | None = None
    tokens: TokenIds | None = None
    hashes: PageHashes | None = None
    model: str | None = None  # needed with all but `thread` where several pools serve
    cache_salt: Name | None = None
    node: str | None = None  # absent: on every node that has any of it
    ttl_s: Annotated[float, Field(gt=0)] = 600.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("thread", "tokens", "hashes") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of thread, tokens, hashes, not {', '.join(given) or 'none'}")
        return self


class PinsApi:
    """What the routes do, without HTTP."""

    def __init__(self, book: PinBook, fleet: Fleet, subjects: Subjects, clock: Clock) -> None:
        self._book = book
        self._fleet = fleet
        self._subjects = subjects
        self._clock = clock

    async def add(self, body: PinBody) -> dict[str, object]:
        """Raises `BadRequest` for a prompt that cannot be named, and what `PinBook.add` raises."""
        pool, digests = await self._named(body)
        subject = body.thread or f"{'tokens' if body.tokens is not None else 'hashes'}"
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
            prompt = self._subjects.prompt(body.thread)
            digests = await self._subjects.digests(body.thread, 0, prompt.tokens) if prompt else b""
            if prompt is None or not digests:
                raise BadRequest(f"the pages of thread {body.thread!r} have no names here: send `tokens`", param="thread")
            return prompt.pool, digests
        pools = list(self._fleet.pools.values())
        pool = pools[0] if body.model is None and len(pools) == 1 else self._fleet.pool_for(body.model or "")
        if body.hashes is not None:
            try:
                return pool, join_digests(body.hashes)
            except ValueError as error:
                raise BadRequest(str(error), param="hashes") from error
        infos = (worker.info for worker in pool.workers.values() if worker.role is not Role.DECODE)
        info = next((info for info in infos if info is not None), None)
        if info is None or body.tokens is None:
            raise BadRequest(f"no worker of pool {pool.name!r} has been discovered yet")
        return pool, named_by_ids(pool, info, body.tokens, body.cache_salt).digests


def pins_router(api: PinsApi, book: PinBook, api_keys: tuple[str, ...]) -> APIRouter:
    router = APIRouter()

    @router.post(PATH, status_code=201)
    async def add(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, api_keys)
        return await api.add(_parse(await request.body()))

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


def _parse(raw: bytes) -> PinBody:
    try:
        return PinBody.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{path}: {first['msg']}" if path else str(first["msg"]), param=path or None) from error
