"""`POST /v1/messages/count_tokens`, passed through to one worker of the pool: nothing is generated, so nothing is placed."""

from __future__ import annotations

import httpx
import msgspec

from router.errors import BadRequest, ConnectFailed, NotServed, NoWorker
from router.fleet.fleet import Fleet
from router.fleet.worker import Worker

PATH = "/v1/messages/count_tokens"


class _Named(msgspec.Struct):
    model: str


_decoder = msgspec.json.Decoder(_Named)


async def count_tokens(fleet: Fleet, http: httpx.AsyncClient, body: bytes, now_ms: float) -> httpx.Response:
    """The engine's own answer. Raises BadRequest, UnknownModel, NotServed, NoWorker or ConnectFailed."""
    try:
        model = _decoder.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body must be a JSON object with a model ({error})", param="model") from None
    pool = fleet.pool_for(model)
    if PATH not in pool.adapter.serves:
        raise NotServed(f"pool {pool.name!r} ({pool.adapter.kind.value}) does not serve {PATH}")
    worker = min(pool.able(now_ms), key=lambda candidate: candidate.inflight, default=None)
    if worker is None:
        raise NoWorker(f"no worker of pool {pool.name!r} is ready")
    return await _ask(worker, http, body)


async def _ask(worker: Worker, http: httpx.AsyncClient, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    if worker.config.api_key:
        headers["authorization"] = f"Bearer {worker.config.api_key}"
    try:
        return await http.post(worker.config.url + PATH, content=body, headers=headers)
    except httpx.HTTPError as error:
        worker.doubted.set()
        raise ConnectFailed(f"{worker.worker_id}: no answer from the engine") from error
