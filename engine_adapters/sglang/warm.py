"""Warm requests: a request that makes a stock SGLang server restore stored KV, and nothing else.

A PD prefill worker takes it with the FAKE bootstrap host and needs no decode leg: what lies in L3 or L2 comes up to L1, newly
computed tokens are not kept (`skip_radix_cache_insert`). A unified worker takes it as a request for one token. The prompt
is cut behind the restored part by a token, since an engine always computes the last one.

No priority is sent: a server with `--enable-priority-scheduling` gives requests without one the lowest there is, and one
without may refuse it (`abort_on_priority_when_disabled`). Seen in 0.5.23 (disaggregation/prefill.py, managers/scheduler.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import httpx
import msgspec

from costmodel.values import Role, Tier
from engine_adapters.base import AdapterError, Endpoint
from engine_adapters.control import call, decode
from engine_adapters.sglang.rooms import ROOM_MAX

FAKE_BOOTSTRAP_HOST = "2.2.2.2"
PATH = "/generate"
_IDS_AT_ONCE = 16_384
_TIERS = {"device": Tier.L1, "host": Tier.L2, "storage": Tier.L3}


class WarmOrder(msgspec.Struct, frozen=True):
    """`tokens` of the prompt `ids` are to be in L1 afterwards. `room`: fresh, in 1..2^63-1; unified workers have none."""

    rid: str
    ids: Sequence[int]
    tokens: int
    role: Role
    room: int | None = None
    dp_rank: int | None = None
    cache_salt: str | None = None


class Warmed(msgspec.Struct, frozen=True):
    """What the server says it restored, by where it lay before. L1: it was there already."""

    prompt_tokens: int
    by_tier: dict[Tier, int]

    @property
    def moved_tokens(self) -> int:
        return sum(tokens for tier, tokens in self.by_tier.items() if tier is not Tier.L1)


class _Meta(msgspec.Struct):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: dict[str, object] | None = None


class _Reply(msgspec.Struct):
    meta_info: _Meta


def warm_body(order: WarmOrder) -> bytes:
    """The body of `POST /generate`. Raises ValueError for a decode worker, or a prefill worker without a room."""
    if order.role is Role.DECODE:
        raise ValueError("a decode worker restores nothing for a warm request")
    members: dict[str, object] = {
        "rid": order.rid,
        "stream": False,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
    if order.role is Role.PREFILL:
        if order.room is None or not 1 <= order.room <= ROOM_MAX:
            raise ValueError(f"a prefill worker needs a room in 1..{ROOM_MAX}, not {order.room}")
        members |= {"bootstrap_host": FAKE_BOOTSTRAP_HOST, "bootstrap_room": order.room}
    if order.dp_rank is not None:
        members["routed_dp_rank"] = order.dp_rank
    if order.cache_salt:
        members["cache_salt"] = order.cache_salt
    ids = array("I", order.ids[: order.tokens + 1])
    return b'{"input_ids":%b,%b' % (_ids_json(ids), msgspec.json.encode(members)[1:])


async def send_warm(http: httpx.AsyncClient, endpoint: Endpoint, order: WarmOrder, timeout_s: float) -> Warmed:
    """Send it and wait for the end. Raises `AdapterError`. Cancelled, the caller must abort `rid`."""
    url = endpoint.url + PATH
    body = warm_body(order)
    headers = {"content-type": "application/json"}
    if endpoint.api_key is not None:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
    try:
        reply = await http.post(url, content=body, headers=headers, timeout=timeout_s)
    except httpx.HTTPError as error:
        raise AdapterError(f"POST {url} failed: {type(error).__name__} {error}".rstrip()) from error
    if reply.status_code >= 400:
        raise AdapterError(f"{url} answered {reply.status_code}: {reply.text[:200]}")
    return read_warmed(reply.content, url)


async def abort_warm(http: httpx.AsyncClient, endpoint: Endpoint, rid: str) -> None:
    """Take it back. Raises `AdapterError`."""
    await call(http, endpoint, "/abort_request", method="POST", body={"rid": rid}, admin=True)


def read_warmed(raw: bytes, origin: str) -> Warmed:
    """Raises `AdapterError` for what is no reply of `/generate`."""
    meta = decode(raw, _Reply, origin).meta_info
    details = meta.cached_tokens_details or {}
    by_tier = {tier: count for name, tier in _TIERS.items() if isinstance(count := details.get(name), int) and count > 0}
    if not by_tier and meta.cached_tokens > 0:
        by_tier = {Tier.L1: meta.cached_tokens}  # an older server does not say where it lay
    return Warmed(meta.prompt_tokens, by_tier)


def _ids_json(ids: array[int]) -> bytes:
    """In pieces, since each is written without letting others run."""
    starts = range(0, len(ids), _IDS_AT_ONCE)
    return b"[%b]" % b",".join([msgspec.json.encode(ids[start : start + _IDS_AT_ONCE].tolist())[1:-1] for start in starts])
