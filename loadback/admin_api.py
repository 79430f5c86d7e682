"""Reads a gateway's `/admin` answers as values. Knows their shape and nothing of how they came about."""

from __future__ import annotations

from typing import TypeVar

import httpx
import msgspec

TIMEOUT_S = 10.0
SHOWN_BYTES = 200
NOT_A_GATEWAY = "is it a loadback gateway? Correct --url"

Value = TypeVar("Value")


class AdminError(Exception):
    """The gateway cannot be asked: what was found, and what to do about it."""

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}: {fix}")
        self.found = found
        self.fix = fix


class Terms(msgspec.Struct, frozen=True):
    queue_ms: float = 0.0
    fetch_ms: float = 0.0
    exposed_ms: float = 0.0
    compute_ms: float = 0.0
    transfer_ms: float = 0.0
    decode_ms: float = 0.0
    pressure_ms: float = 0.0
    admit_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0


class Actual(msgspec.Struct, frozen=True):
    ttft_ms: float | None = None
    total_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cached_by_tier: dict[str, int] | None = None
    completion_tokens: int | None = None


class PastTurn(msgspec.Struct, frozen=True):
    """One entry of `/admin/decisions`."""

    id: str
    thread: str = ""
    kind: str = ""
    first_call: bool = False
    worker: str = ""
    policy: str | None = None
    predicted: Terms | None = None
    predicted_cached_tokens: int | None = None
    actual: Actual = Actual()
    hit_tier: str | None = None
    outcome: str = ""
    status: int = 0
    tries: int = 0


class Candidate(msgspec.Struct, frozen=True):
    """One worker pair that a decision considered."""

    worker: str
    cut_tokens: int
    hit_tier: str | None
    terms: Terms


class Explained(msgspec.Struct, frozen=True):
    """The answer of `/admin/explain`."""

    worker: str
    reason: str
    policy: str
    chosen: Candidate
    others: list[Candidate]
    model: str = ""
    pool: str = ""
    thread: str = ""
    kind: str = ""
    first_call: bool = False
    prompt_tokens: int = 0
    prompt_tokens_exact: bool = False
    known_tokens: int = 0
    guards: list[str] = []
    due_class: str | None = msgspec.field(default=None, name="class")
    deadline_ms: float | None = None
    shed: bool = False
    left_out: dict[str, str] = {}  # why, by worker


class Decisions(msgspec.Struct, frozen=True):
    decisions: list[PastTurn]


class Feed(msgspec.Struct, frozen=True):
    """One rank's KV events."""

    rank: int = 0
    state: str = ""
    applied: int = 0
    gaps: int = 0
    address: str = ""


class Predicted(msgspec.Struct, frozen=True):
    """How far a prefill worker's times to the first token were off, over its last 200 turns."""

    turns: int = 0
    error_p50: float | None = None
    bias_p50: float | None = None
    drifting: bool = False


class Regretted(msgspec.Struct, frozen=True):
    """What the runner-up is thought to have been worth, over the last 200 turns that were looked at."""

    turns: int = 0
    mean_ms: float | None = None
    share: float | None = None


class RestoreLink(msgspec.Struct, frozen=True):
    """One leg of a worker's restores. `reports` of agents and `replies` of engines have told of it; else it is a prior."""

    tier: str = ""
    source: str = ""
    latency_ms: float = 0.0
    bytes_per_ms: float = 0.0
    factor: float = 1.0
    reports: int = 0
    replies: int = 0


class Worker(msgspec.Struct, frozen=True):
    """One entry of `/admin/workers`."""

    id: str
    pool: str = ""
    role: str = ""
    url: str = ""
    state: str = ""
    engine: str | None = None
    page_size: int | None = None
    dp_size: int | None = None
    breaker: str = ""
    last_fault: str | None = None
    inflight: int = 0
    ttft: Predicted = Predicted()
    terms: dict[str, Predicted] = {}
    regret: Regretted = Regretted()
    links: list[RestoreLink] = []
    events: list[Feed] = []


class Workers(msgspec.Struct, frozen=True):
    workers: list[Worker]


class PromptModel(msgspec.Struct, frozen=True):
    """How far the prompts of one model at one API path are trusted: exact, whole or lineage."""

    model: str
    path: str
    state: str = ""
    agreed: int = 0
    verified: int = 0
    mismatches: int = 0
    reason: str = ""


class Prompts(msgspec.Struct, frozen=True):
    error: str = ""
    threads: int = 0
    bytes: int = 0
    cpu_ms: float = 0.0
    models: list[PromptModel] = []


class PoolIndex(msgspec.Struct, frozen=True):
    """One entry of `/admin/index`. `prompt`: the worst of its models (exact, whole, discredited), unusable, not configured."""

    pool: str
    prompt: str = ""
    prompts: Prompts | None = None


class Indexes(msgspec.Struct, frozen=True):
    pools: list[PoolIndex]


class NodeNumbers(msgspec.Struct, frozen=True):
    """What one node's agent told of itself last."""

    node: str
    up: bool = False
    fault: str = ""
    age_ms: float | None = None  # since it told
    numbers: dict[str, float] = {}


class PrefetchTally(msgspec.Struct, frozen=True):
    """What prefetch did for one trigger; `jobs` by their end."""

    planned_bytes: int = 0
    moved_bytes: int = 0
    useful_bytes: int = 0
    wasted_bytes: int = 0
    late_bytes: int = 0
    warmed_bytes: int = 0
    warm_wasted_bytes: int = 0
    saved_ms: float = 0.0
    added_ms: float = 0.0
    jobs: dict[str, int] = {}


class Prefetched(msgspec.Struct, frozen=True):
    triggers: dict[str, PrefetchTally] = {}


class Tiers(msgspec.Struct, frozen=True):
    """The answer of `/admin/tiers`."""

    nodes: list[NodeNumbers] = []
    prefetch: Prefetched = Prefetched()


class _Fault(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    """A gateway's error body."""

    error: _Fault


def admin_headers(token: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def decode(data: bytes, kind: type[Value], where: str) -> Value:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        shown = data[:SHOWN_BYTES].decode(errors="replace")
        raise AdminError(f"{where} answered {shown!r} ({error})", NOT_A_GATEWAY) from error


async def fetch(
    http: httpx.AsyncClient, path: str, kind: type[Value], body: bytes | None = None, method: str | None = None
) -> Value:
    """GET, or POST of a JSON body, or another method. Raises `AdminError`."""
    method = method or ("GET" if body is None else "POST")
    headers = {"content-type": "application/json"} if body else {}
    where = f"{http.base_url}{path}"
    try:
        response = await http.request(method, path, content=body, headers=headers, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise AdminError(
            f"no answer from {where} ({cause(error, TIMEOUT_S)})", "start the gateway, or correct --url"
        ) from error
    if response.status_code in (401, 403):
        raise refused(where, response, sent_token="authorization" in http.headers)
    if response.status_code >= 400:
        raise AdminError(*told(where, response))
    return decode(response.content, kind, where)


def cause(error: httpx.HTTPError, timeout_s: float) -> str:
    """A time-out has no text of its own."""
    return (
        f"timed out after {timeout_s:g} s" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
    )


def refused(where: str, response: httpx.Response, *, sent_token: bool) -> AdminError:
    """Where no token is set only the gateway's own host may ask; where one is, that does not help."""
    status = response.status_code
    if "loopback only" in told(where, response)[1]:
        fix = "ask from the gateway's own host, or set auth.admin_token there and give it as --token"
        return AdminError(f"{where} refused us ({status})", fix)
    if sent_token:
        return AdminError(
            f"the token was refused ({where} answered {status})", "give the gateway's own auth.admin_token as --token"
        )
    return AdminError(f"{where} refused us ({status})", "give the gateway's auth.admin_token as --token")


def told(where: str, response: httpx.Response) -> tuple[str, str]:
    """A gateway's own words about a body that it refused; of any other server what it answered, and the suspicion."""
    try:
        return f"{where} answered {response.status_code}", msgspec.json.decode(response.content, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return f"{where} answered {response.status_code} {response.text[:SHOWN_BYTES]!r}", NOT_A_GATEWAY
