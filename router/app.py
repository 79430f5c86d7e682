"""The application around the hot path: health, models and metrics for everybody, admin behind its own door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from router.admin.routes import admin_door, admin_router
from router.auth import check_client
from router.count_tokens import PATH as COUNT_TOKENS
from router.count_tokens import count_tokens
from router.dialects import DIALECTS, MESSAGES
from router.dialects.dialect import openai_error
from router.errors import BadRequest, GatewayError, Malformed, NotServed, UnknownModel
from router.fleet.calibration_metrics import CalibrationCollector
from router.gateway import Gateway
from router.guard import Guard
from router.prefetch.api import PrefetchApi, prefetch_router
from router.prefetch.prefetch_metrics import PrefetchCollector
from router.sharing_metrics import SharingCollector
from router.tiers.pins_api import PinsApi, pins_router
from router.tiers.tier_metrics import TierCollector
from router.turn.metrics import GatewayCollector
from router.turn.prompt_metrics import PromptCollector
from router.turn.service import error_headers
from router.wire.head import Header
from router.wire.routes import HotRoutes

_METHODS = ("GET", "POST", "PUT", "DELETE")


def build_app(gateway: Gateway, routes: HotRoutes) -> FastAPI:
    """Everything that is not hot; `routes` are its hot twin. Starting the app starts the gateway, closing it closes it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.close()

    app = FastAPI(title="loadback", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.include_router(admin_router(gateway, app.openapi))
    api = PrefetchApi(gateway.prefetch, gateway.fleet, gateway.extender, gateway.clock)
    app.include_router(prefetch_router(api, gateway.config.auth.api_keys))
    pins = PinsApi(gateway.tiers.pins, gateway.fleet, gateway.prefetch.subjects, gateway.clock)
    app.include_router(pins_router(pins, gateway.tiers.pins, gateway.config.auth.api_keys))
    _add_public(app, gateway, routes)
    _add_errors(app, routes)
    doors = {"/admin": admin_door(gateway)}
    app.add_middleware(Guard, doors=doors, max_body_bytes=gateway.config.listen.max_body_bytes, refuse=_refusal)
    return app


def build_routes(gateway: Gateway) -> HotRoutes:
    """The hot paths, for `wire.serve.build_server`."""
    return HotRoutes(
        gateway.turns.handle,
        list(DIALECTS),
        max_body_bytes=gateway.config.listen.max_body_bytes,
        render_error=render_error,
        before_break=gateway.turns.before_break,
    )


def render_error(path: str, error: GatewayError) -> tuple[list[Header], bytes]:
    """What is answered for an error on any path, in that path's dialect."""
    dialect = MESSAGES if path == COUNT_TOKENS else DIALECTS.get(path)
    return error_headers(error), openai_error(error) if dialect is None else dialect.error_body(error)


def _add_public(app: FastAPI, gateway: Gateway, routes: HotRoutes) -> None:
    registry = CollectorRegistry()
    registry.register(GatewayCollector(gateway.metrics, gateway.fleet, gateway.dispatcher.holds, lambda: routes.failures))
    registry.register(PromptCollector(gateway.extender.pools.values(), gateway.loop_lag))
    registry.register(PrefetchCollector(gateway.prefetch.prefetcher))
    registry.register(TierCollector(gateway.tiers))
    registry.register(CalibrationCollector(gateway.fleet))
    registry.register(SharingCollector(gateway.sharing))

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, object]:
        check_client(request.headers.raw, gateway.config.auth.api_keys)
        names = [name for pool in gateway.fleet.pools.values() for name in pool.models]
        return {
            "object": "list",
            "data": [_model_row(name) for name in dict.fromkeys(names)],
        }

    @app.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> dict[str, object]:
        check_client(request.headers.raw, gateway.config.auth.api_keys)
        if not any(model in pool.models for pool in gateway.fleet.pools.values()):
            raise UnknownModel(f"model {model!r} is not served here", param="model")
        return _model_row(model)

    @app.post(COUNT_TOKENS)
    async def counted(request: Request) -> Response:
        check_client(request.headers.raw, gateway.config.auth.api_keys)
        answer = await count_tokens(gateway.fleet, gateway.http, await request.body(), gateway.clock())
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Ready means: some pool has a prefill and a decode worker, or a unified one."""
        if gateway.fleet.ready:
            return JSONResponse({"status": "ready"})
        missing = {pool.name: pool.missing_roles for pool in gateway.fleet.pools.values()}
        return JSONResponse({"status": "not ready", "missing": missing}, status_code=503, headers={"retry-after": "2"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def _allowed(app: FastAPI, scope: Scope) -> list[str]:
    """The methods of a path: starlette tells those of the first route alone."""

    def takes(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)

    return [name for method in _METHODS if takes(method) for name in ([method, "HEAD"] if method == "GET" else [method])]


def _model_row(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "loadback"}


def _refusal(path: str, error: GatewayError, more: Mapping[str, str] | None = None) -> Response:
    headers, body = render_error(path, error)
    fields = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status_code=error.status, headers=fields | dict(more or {}))


def _add_errors(app: FastAPI, routes: HotRoutes) -> None:
    """Every error in the shape that clients can read, whoever found it."""

    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> Response:
        return _refusal(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return _refusal(request.url.path, Malformed.of(error.errors()))

    @app.exception_handler(Exception)
    async def crashed(request: Request, error: Exception) -> Response:
        """Raised again afterwards, so that the server logs it."""
        routes.failures += 1
        return _refusal(request.url.path, GatewayError("internal error"))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        """Unknown paths and methods."""
        path, status, headers = request.url.path, error.status_code, error.headers
        known = f"{request.method} {path} is not served here"
        if path in DIALECTS:
            known, status, headers = f"{path} takes POST", 405, {"allow": "POST"}
        elif status == 405:
            headers = {"allow": ", ".join(_allowed(app, request.scope))}
        found: GatewayError = NotServed(known) if status in (404, 405) else BadRequest(str(error.detail))
        found.status = status
        return _refusal(path, found, headers)
