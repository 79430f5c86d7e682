"""SGLang behind the `EngineAdapter` contract: which of its endpoints answer which question, newest first.

The pure parts do the reading; this file only knows the order in which to ask and how to abort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx
import msgspec

from engine_adapters.base import (
    AdapterError,
    Edit,
    Endpoint,
    EngineInfo,
    EngineKind,
    EventBatch,
    LoadReport,
    ReplyFacts,
)
from engine_adapters.control import ControlStatus, call
from engine_adapters.models_list import read_models
from engine_adapters.sglang import events, loads, wire
from engine_adapters.sglang.cached_details import cached_by_tier
from engine_adapters.sglang.discovery import engine_info
from engine_adapters.usage import read_usage

_INFO_PATHS = ("/server_info", "/get_server_info")
_LOAD_READERS: tuple[tuple[str, Callable[[str, str], tuple[LoadReport, ...]]], ...] = (
    ("/v1/loads", lambda text, origin: loads.from_loads(text.encode(), origin)),
    ("/get_load", lambda text, origin: loads.from_get_load(text.encode(), origin)),
    ("/metrics", loads.from_metrics),
)


class SglangAdapter:
    """SGLang 0.4 to 0.5, unified or disaggregated, and anything that speaks its wire. Stateless."""

    kind = EngineKind.SGLANG
    reserved_keys = wire.RESERVED_KEYS
    reserved_headers = wire.RESERVED_HEADERS
    serves = frozenset(wire.PATHS) | {"/v1/models"}

    async def discover(self, http: httpx.AsyncClient, endpoint: Endpoint) -> EngineInfo:
        raw = (await _first_known(http, endpoint, _INFO_PATHS)).content
        return engine_info(raw, await read_models(http, endpoint), endpoint.url)

    async def read_loads(self, http: httpx.AsyncClient, endpoint: Endpoint) -> Sequence[LoadReport]:
        for path, read in _LOAD_READERS:
            try:
                reply = await call(http, endpoint, path)
            except ControlStatus as status:
                if status.absent:
                    continue
                raise
            return read(reply.text, endpoint.url + path)
        asked = ", ".join(path for path, _ in _LOAD_READERS)
        raise AdapterError(f"{endpoint.url} tells no load: none of {asked} exists (start it with --enable-metrics)")

    async def abort(self, http: httpx.AsyncClient, endpoint: Endpoint, rid: str) -> None:
        """Stop the request whose id is `rid`. An id that the engine does not know (any more) is no error."""
        if not rid:
            raise AdapterError("abort needs a request id: SGLang would match every request with an empty one")
        await call(http, endpoint, "/abort_request", method="POST", body={"rid": rid}, admin=True)

    async def healthy(self, http: httpx.AsyncClient, endpoint: Endpoint) -> bool:
        """Whether the server answers for its models. `/health` would generate a token and waits a second or more for it."""
        try:
            return bool((await read_models(http, endpoint)).data)
        except AdapterError:
            return False

    async def flush_cache(self, http: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> None:
        """Empty the radix cache, waiting up to `timeout_s` for the engine to be idle: at once would tear PD transfers."""
        path = f"/flush_cache?timeout={timeout_s:g}"
        await call(http, endpoint, path, method="POST", admin=True, timeout_s=timeout_s + 5.0)

    def decode_events(self, payload: bytes) -> EventBatch:
        return events.decode_events(payload)

    def request_id(self, path: str, token: str) -> str:
        return wire.request_id(path, token)

    def members(self, edit: Edit) -> bytes:
        return wire.members(edit)

    def headers(self, edit: Edit) -> tuple[tuple[bytes, bytes], ...]:
        return wire.headers(edit)

    def facts(self, usage: bytes, details: bytes | None) -> ReplyFacts:
        facts = read_usage(usage)
        return facts if details is None else msgspec.structs.replace(facts, cached_by_tier=cached_by_tier(details))


async def _first_known(http: httpx.AsyncClient, endpoint: Endpoint, paths: Sequence[str]) -> httpx.Response:
    """The reply of the first of `paths` that the server knows."""
    for path in paths:
        try:
            return await call(http, endpoint, path)
        except ControlStatus as status:
            if not status.absent:
                raise
    raise AdapterError(f"{endpoint.url} serves none of {', '.join(paths)}: this is no SGLang server")
