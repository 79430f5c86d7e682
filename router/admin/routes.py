"""The admin API under /admin: workers, policy, explain, decisions, threads, index. Documented by OpenAPI at /admin/docs.

It has a token of its own. Without one configured, only loopback clients are let in.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from costmodel.values import Role
from engine_adapters.base import AdapterError
from kvtier.prefetch.params import Mode
from router.admin.tiers import node_tiers
from router.admin.views import explain_view, pool_index_view, thread_view, tiers_view, worker_view
from router.auth import sent_key
from router.config.load import ConfigError, parse_policy
from router.config.tree import PolicyConfig, Section, WorkerConfig
from router.errors import BadRequest, EngineError, Unauthorized
from router.gateway import Gateway
from router.prefetch.prefetch_metrics import prefetch_view
from router.turn.record import record_json

_UI = b'<div id="swagger-ui">'
_WITHOUT_UI = (
    b'This page needs the internet, for Swagger UI. The same as JSON: <a href="/admin/openapi.json">/admin/openapi.json</a>'
)
_LOOPBACK = frozenset(("127.0.0.1", "::1", "::ffff:127.0.0.1"))


class AddWorker(Section):
    """Body of `POST /admin/workers`."""

    pool: str = "default"
    role: Role
    worker: WorkerConfig


class PrefetchSwitch(Section):
    """Body of `PUT /admin/prefetch`."""

    mode: Mode


def admin_router(gateway: Gateway, openapi: Callable[[], dict[str, Any]]) -> APIRouter:
    """`openapi` makes the description that /admin/openapi.json and /admin/docs show, behind the same door as the rest."""
    router = APIRouter(prefix="/admin")
    _add_description(router, openapi)
    _add_workers(router, gateway)
    _add_policy(router, gateway)
    _add_prefetch(router, gateway)
    _add_insight(router, gateway)
    return router


def admin_door(gateway: Gateway) -> Callable[[Request], None]:
    """For `router.guard`, which asks before a body is read. Raises `Unauthorized`."""
    token = gateway.config.auth.admin_token

    def check(request: Request) -> None:
        if token is None:
            host = request.client.host if request.client else ""
            if host not in _LOOPBACK:
                raise Unauthorized("/admin answers loopback only until `auth.admin_token` is set")
            return
        sent = sent_key(request.headers.raw)
        if not sent or not hmac.compare_digest(sent, token.encode()):
            raise Unauthorized("/admin needs `Authorization: Bearer ADMIN_TOKEN` (`auth.admin_token`)")

    return check


def _add_description(router: APIRouter, openapi: Callable[[], dict[str, Any]]) -> None:
    @router.get("/openapi.json", include_in_schema=False)
    async def description() -> dict[str, Any]:
        return openapi()

    @router.get("/docs", include_in_schema=False)
    async def page() -> Response:
        """Swagger UI puts itself in place of what stands in its part of the page."""
        page = bytes(get_swagger_ui_html(openapi_url="/admin/openapi.json", title="loadback admin").body)
        return HTMLResponse(page.replace(_UI, _UI + _WITHOUT_UI))


def _add_workers(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/workers", summary="All workers with state, load and events")
    async def workers() -> dict[str, object]:
        now_ms = gateway.clock()
        rows = [
            worker_view(pool, worker, gateway.monitor.feeds(worker.worker_id), now_ms)
            for pool in gateway.fleet.pools.values()
            for worker in pool.workers.values()
        ]
        return {"workers": rows}

    @router.post("/workers", status_code=201, summary="Add a worker to a pool; it takes turns once discovered")
    async def add(body: AddWorker) -> dict[str, object]:
        worker = gateway.add_worker(body.pool, body.role, body.worker)
        return {"id": worker.worker_id, "state": worker.state}

    @router.post("/workers/{worker_id}/drain", summary="No new turns; running ones finish")
    async def drain(worker_id: str) -> dict[str, object]:
        worker = gateway.fleet.drain(worker_id)
        return {"id": worker.worker_id, "state": worker.state, "inflight": worker.inflight}

    @router.post("/workers/{worker_id}/flush", summary="Empty the engine's cache once it is idle")
    async def flush(worker_id: str, timeout_s: Annotated[float, Query(gt=0, le=300)] = 30.0) -> dict[str, object]:
        try:
            await gateway.flush_worker(worker_id, timeout_s)
        except AdapterError as error:
            raise EngineError(str(error)) from error
        return {"id": worker_id, "flushed": True}

    @router.delete("/workers/{worker_id}", summary="Remove a worker and all that it was known to hold")
    async def remove(worker_id: str) -> dict[str, object]:
        await gateway.remove_worker(worker_id)
        return {"id": worker_id, "removed": True}


def _add_policy(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/policy", summary="The policy in force")
    async def read() -> PolicyConfig:
        return gateway.fleet.policy_config

    @router.post("/policy/validate", summary="Check a policy without using it")
    async def validate(tree: Annotated[dict[str, Any], Body()]) -> dict[str, object]:
        try:
            return {"valid": True, "policy": parse_policy(tree, "body")}
        except ConfigError as error:
            return {"valid": False, "errors": str(error).splitlines()}

    @router.put("/policy", summary="Replace the policy; the next turn is placed by it")
    async def replace(tree: Annotated[dict[str, Any], Body()]) -> PolicyConfig:
        try:
            config = parse_policy(tree, "body")
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        gateway.fleet.replace_policy(config)
        return config


def _add_prefetch(router: APIRouter, gateway: Gateway) -> None:
    @router.put("/prefetch", summary="Switch prefetch on, to a dry run, or off: then what runs is taken back")
    async def switch(body: PrefetchSwitch) -> dict[str, object]:
        gateway.prefetch.switch(body.mode)
        return prefetch_view(gateway.prefetch.prefetcher)


def _add_insight(router: APIRouter, gateway: Gateway) -> None:
    @router.post("/explain", summary="Where would this body go, and why? Nothing is sent")
    async def explain(
        request: Request,
        path: str = "/v1/chat/completions",
        deadline_ms: Annotated[float | None, Query(gt=0, allow_inf_nan=False)] = None,
    ) -> dict[str, object]:
        return explain_view(gateway, path, await request.body(), list(request.headers.raw), deadline_ms)

    @router.get("/decisions", summary="The last turns: every predicted term beside what happened")
    async def decisions(limit: Annotated[int, Query(ge=1, le=100_000)] = 100) -> dict[str, object]:
        return {"decisions": [record_json(record) for record in gateway.turns.records.newest(limit)]}

    @router.get("/threads", summary="Conversations known at this moment, most recent first")
    async def threads(limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> dict[str, object]:
        store = gateway.threads
        return {
            "threads": [thread_view(thread) for thread in store.newest(limit)],
            "count": len(store),
            "bytes": store.used_bytes,
        }

    @router.get("/tiers", summary="What came from which tier, what agents say, and what prefetch did, by trigger")
    async def tiers() -> dict[str, object]:
        return tiers_view(gateway) | node_tiers(gateway)

    @router.get("/index", summary="Size and health of the block and lineage indexes")
    async def index() -> dict[str, object]:
        pools = gateway.fleet.pools.values()
        return {"pools": [pool_index_view(pool, gateway.extender) for pool in pools]}
