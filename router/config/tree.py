"""The one configuration tree, as pydantic models. Unknown keys are rejected with their path; defaults are written here only.

It holds values and checks; it opens no file and reads no environment (`load.py` does), and it starts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, Self, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from costmodel.hardware import BYTES_PER_MS_PER_GBS, HardwarePrior
from costmodel.params import CostParams, CutRule, Objective, PolicyParams
from costmodel.policies import REGISTRY
from costmodel.roofline import DECODE_CONTEXT_TOKENS, HBM_SHARE, MFU, DataType
from costmodel.values import DecodeRates, Link, PrefillRates, Role, Tier
from engine_adapters.base import EngineKind
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.shared_index.redis_link import RedisSettings


class Section(BaseModel):
    """No number is infinite or NaN: neither compares as a limit should. Nor is `true`, which would be taken for 1 of any unit;
    `false`, and so YAML's `off`, is 0 as everywhere."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[info.field_name or ""].annotation
        if value is True and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("expected a number, not true")
        return value


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL such as http://10.0.0.5:30000")
    _check_port_of(parts)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("give scheme, host and port only: paths are added by the gateway")
    return url.rstrip("/")


def _check_port_of(parts: SplitResult) -> None:
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"expected a port from 1 to 65535: {error}") from None
    if port == 0:
        raise ValueError("expected a port from 1 to 65535, not 0")


def _check_address(address: str) -> str:
    _check_port_of(urlsplit(f"//{address}"))
    return address


def _check_zmq_address(address: str) -> str:
    parts = urlsplit(address)
    _check_port_of(parts)
    if parts.scheme != "tcp" or not parts.hostname or parts.port is None:
        raise ValueError("expected an address such as tcp://10.0.0.5:5557")
    return address


Url = Annotated[str, AfterValidator(_check_url)]
ZmqAddress = Annotated[str, AfterValidator(_check_zmq_address)]
Port = Annotated[int, Field(ge=1, le=65535)]
Ms = Annotated[float, Field(ge=0, le=1e12)]  # 30 years: what is above overflows where it is squared
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Slope = Annotated[float, Field(ge=1e-12, le=1e12)]  # of what others are told as ratios to it
Key = Annotated[str, Field(min_length=1)]  # an empty credential would match an empty header


def _twice(names: Iterable[str]) -> str:
    """Those that are there more than once, as words of a fault; empty where each is there once."""
    return ", ".join(repr(name) for name, count in Counter(names).items() if count > 1)


class ListenConfig(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    backlog: int = 4096
    max_body_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    drain_s: Seconds = 180.0  # after SIGTERM, until the process has ended


class AuthConfig(Section):
    """`api_keys`: clients must send one of these; empty means that any client may come in."""

    api_keys: tuple[Key, ...] = ()
    admin_token: Key | None = None  # without one, /admin answers loopback clients only


class WorkerConfig(Section):
    url: Url
    name: str | None = None  # shown in headers and tables; defaults to host:port
    node: str | None = None  # the host it runs on; defaults to the URL's host
    bootstrap_host: str | None = None  # prefill only; defaults to the URL's host
    bootstrap_port: Port | None = None  # prefill only; discovered when absent
    api_key: str | None = None  # sent to this engine instead of the client's Authorization
    admin_key: str | None = None  # for flush and abort on engines that protect them
    kv_events: ZmqAddress | None = None  # its KV event publisher, where the engine does not tell it (vLLM); rank r at port + r
    kv_replay: ZmqAddress | None = None  # the same publisher's replay socket

    @property
    def worker_id(self) -> str:
        return self.name or urlsplit(self.url).netloc

    @property
    def home(self) -> str:
        """The node that it runs on."""
        return self.node or urlsplit(self.url).hostname or ""


class PromptConfig(Section):
    """How to turn a chat into the engine's token ids. Absent: residency comes from the thread's own lineage."""

    model_dir: str  # folder with tokenizer.json, tokenizer_config.json and the chat template
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    queue_limit: Annotated[int, Field(ge=1)] = 64  # prompts that wait or are made; one more goes by lineage
    queue_bytes: Annotated[int, Field(gt=0)] = 8_000_000  # of their bodies together
    keep_ids: bool = True  # without them states take a sixth, and deep edits are tokenised anew
    max_bytes: Annotated[int, Field(gt=0)] = 1_500_000_000
    max_thread_bytes: Annotated[int, Field(gt=0)] = 64 * 1024 * 1024
    verify_every: Annotated[int, Field(ge=0)] = 64  # one in so many is tokenised whole and compared; 0 = never
    fast: bool = False  # with fastokens, where it is installed and exact
    hash_seed: str | None = None  # vLLM's PYTHONHASHSEED, where its servers have one
    cold_deadline_ms: Ms = 20.0  # how long a turn may wait for its prompt before it is placed
    forward_ids: bool = False  # SGLang: send the ids of threads that were found exact

    @model_validator(mode="after")
    def _ids(self) -> Self:
        if self.forward_ids and not self.keep_ids:
            raise ValueError("`forward_ids` needs `keep_ids: true`")
        return self


class LinkConfig(Section):
    latency_ms: Ms = 0.0
    gb_per_s: Annotated[float, Field(ge=1e-9, le=1e9)]  # a byte a second, and more than any wire: its inverse is kept

    def as_link(self) -> Link:
        return Link(self.latency_ms, self.gb_per_s * BYTES_PER_MS_PER_GBS)


Share = Annotated[float, Field(ge=0.001, le=1)]


class MachineConfig(Section):
    """What a worker runs on and how, for first beliefs from data sheets (`costmodel.roofline`)."""

    accelerator: str  # a file of configs/hardware, or the path of one
    model: str  # a file of configs/models, or the path of one
    accelerators: Annotated[int, Field(ge=1, le=4096)]  # of one worker
    weight_type: DataType
    compute_type: DataType | None = None  # None: by `costmodel.roofline.compute_type`
    kv_type: DataType = DataType.BF16  # as engines keep it where nobody tells them
    mfu: Share = MFU
    hbm_share: Share = HBM_SHARE
    decode_context_tokens: Annotated[int, Field(ge=1, le=10**9)] = DECODE_CONTEXT_TOKENS


_PRIOR = HardwarePrior()


class HardwareConfig(Section):
    """Priors for the cost model. Measurements replace them as turns are served. `load.py` fills in what `machine` says."""

    machine: MachineConfig | None = None  # that keys which are not given are taken from
    prefill_base_ms: Ms = _PRIOR.prefill.base_ms
    prefill_ms_per_token: Slope = _PRIOR.prefill.ms_per_token
    prefill_ms_per_token2: Ms = _PRIOR.prefill.ms_per_token2
    prefill_ms_per_cached_token: Ms = _PRIOR.prefill.ms_per_cached_token
    itl_base_ms: Slope = _PRIOR.decode.itl_base_ms
    itl_ms_per_running: Ms = _PRIOR.decode.itl_ms_per_running
    kv_bytes_per_token: Slope = _PRIOR.kv_bytes_per_token
    l2_link: LinkConfig = LinkConfig(latency_ms=0.05, gb_per_s=51.0)  # host to device
    l3_link: LinkConfig = LinkConfig(latency_ms=0.1, gb_per_s=41.8)  # remote pool over RDMA
    l4_link: LinkConfig = LinkConfig(latency_ms=0.2, gb_per_s=12.0)
    pd_link: LinkConfig = LinkConfig(latency_ms=1.0, gb_per_s=41.8)

    def prefill_prior(self) -> PrefillRates:
        linear, quadratic = self.prefill_ms_per_token, self.prefill_ms_per_token2
        return PrefillRates(self.prefill_base_ms, linear, quadratic, ms_per_cached_token=self.prefill_ms_per_cached_token)

    def restore_prior(self) -> dict[Tier, Link]:
        return {Tier.L2: self.l2_link.as_link(), Tier.L3: self.l3_link.as_link(), Tier.L4: self.l4_link.as_link()}

    def decode_prior(self) -> DecodeRates:
        return DecodeRates(self.itl_base_ms, self.itl_ms_per_running)


ClassName = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # a header comes without blanks around it


class SloConfig(Section):
    """What a class of turns is promised; read under `objective: slo`."""

    ttft_ms: Annotated[float, Field(gt=0)] = 10_000.0  # arrival to first token
    shed: bool = False  # refuse a turn whose first token is predicted to be late on every worker


_COST = CostParams()


class PolicyConfig(Section):
    """Which policy places turns, and the cost policy's guards; `costmodel.params` says what each does."""

    name: str = "cost"
    cut_rule: CutRule = _COST.cut_rule
    overlap_rho: Annotated[float, Field(ge=0, le=1)] = _COST.overlap_rho
    switch_margin_ms: Ms = _COST.switch_margin_ms
    kv_pressure_fraction: Annotated[float, Field(ge=0, le=1)] = _COST.kv_pressure_fraction
    waiting_limit: Annotated[int, Field(ge=0)] = _COST.waiting_limit
    common_prefix_discount: Annotated[float, Field(ge=0, le=1)] = _COST.common_prefix_discount
    never_used_first: bool = _COST.never_used_first
    staleness_half_life_ms: Ms = _COST.staleness_half_life_ms
    near_tie_ms: Ms = _COST.near_tie_ms
    softmax_temperature: Annotated[float, Field(ge=0)] = _COST.softmax_temperature
    ramp_turns: Annotated[int, Field(ge=0)] = _COST.ramp_turns
    replication_weight: Annotated[float, Field(ge=0, le=1)] = _COST.replication_weight
    displacement_weight: Annotated[float, Field(ge=0)] = _COST.displacement_weight
    eviction_discount: Annotated[float, Field(ge=0, le=1)] = _COST.eviction_discount
    objective: Objective = _COST.objective
    slo: SloConfig = SloConfig()  # of turns that name no class
    classes: dict[ClassName, SloConfig] = {}  # by what clients send as x-loadback-class
    predict_on_route: bool = True  # count what was sent and is not yet reported; false: only what engines report

    def as_params(self) -> PolicyParams:
        return PolicyParams(CostParams(**self.model_dump(exclude={"name", "slo", "classes", "predict_on_route"})))

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in REGISTRY:
            raise ValueError(f"unknown policy {self.name!r}: choose one of {', '.join(sorted(REGISTRY))}")
        if self.objective is not Objective.E2E and self.name != "cost":
            raise ValueError(f"policy {self.name!r} has no objective: only `cost` has")
        if self.objective is not Objective.SLO and (self.classes or self.slo != SloConfig()):
            raise ValueError("`slo` and `classes` are read under `objective: slo` only")
        if "default" in self.classes and self.slo != SloConfig():
            raise ValueError("`slo` and `classes.default` are both of turns that name no class: give one of them")
        return self


class PoolConfig(Section):
    """Workers that serve the same models. Either `unified`, or `prefill` and `decode`."""

    name: str = "default"
    models: tuple[str, ...] = ()  # names clients may ask for; empty: what the engines report; "*": anything
    engine: EngineKind = EngineKind.SGLANG
    unified: tuple[WorkerConfig, ...] = ()
    prefill: tuple[WorkerConfig, ...] = ()
    decode: tuple[WorkerConfig, ...] = ()
    prompt: PromptConfig | None = None
    hardware: HardwareConfig = HardwareConfig()
    max_running_turns: Annotated[int, Field(ge=1)] = 1024  # permits, held to the end of the stream

    @property
    def disaggregated(self) -> bool:
        return bool(self.prefill or self.decode)

    def workers(self) -> tuple[tuple[Role, WorkerConfig], ...]:
        groups = ((Role.UNIFIED, self.unified), (Role.PREFILL, self.prefill), (Role.DECODE, self.decode))
        return tuple((role, worker) for role, workers in groups for worker in workers)

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if self.unified and self.disaggregated:
            raise ValueError("a pool is either `unified` or `prefill` and `decode`, not both: split it into two pools")
        if bool(self.prefill) != bool(self.decode):
            raise ValueError("a PD pool needs both `prefill` and `decode` workers")
        if self.disaggregated and self.engine is not EngineKind.SGLANG:
            raise ValueError(f"`prefill`/`decode` need engine: sglang; {self.engine.value} pools are `unified`")
        if self.prompt is not None and self.prompt.forward_ids and self.engine is not EngineKind.SGLANG:
            raise ValueError(f"`prompt.forward_ids` needs engine: sglang; {self.engine.value} takes no token ids")
        for role, worker in self.workers():
            if role is not Role.PREFILL and (worker.bootstrap_port or worker.bootstrap_host):
                raise ValueError(f"`bootstrap_host` and `bootstrap_port` are for prefill; {worker.worker_id} is {role.value}")
        if twice := _twice(worker.worker_id for _, worker in self.workers()):
            raise ValueError(f"two workers of this pool have the same name or address, {twice}: set `name`")
        return self


class AdmissionConfig(Section):
    queue_limit: Annotated[int, Field(ge=0)] = 1024
    queue_timeout_s: Seconds = 60.0
    hold_ms: Ms = 2000.0  # predicted prefill ahead beyond which a turn waits here (`router.fleet.hold`); 0 = never


class RetryConfig(Section):
    """Tries of one turn before its first byte, and the share of turns that may be retried at all."""

    max_tries: Annotated[int, Field(ge=1, le=10)] = 3
    budget_ratio: Annotated[float, Field(ge=0, le=1)] = 0.2
    budget_floor: Annotated[int, Field(ge=0)] = 10  # retries always allowed in a 10 s window


class BreakerConfig(Section):
    failures: Annotated[int, Field(ge=1)] = 5
    window_s: Seconds = 30.0
    open_s: Seconds = 5.0


class TimeoutConfig(Section):
    connect_s: Seconds = 3.0
    first_byte_s: Seconds = 600.0  # dispatch to the engine's first real event
    idle_s: Seconds = 600.0  # silence between events
    abort_s: Seconds = 2.0
    keep_alive_s: Seconds = 10.0  # SSE keep-alive after this much silence
    commit_s: Seconds = 60.0  # when a silent stream's 200 is sent at last
    client_stall_s: Seconds = 120.0  # a client that takes no byte of its stream for this long is dropped
    upstream_idle_s: Seconds = 4.0  # below the engines' own keep-alive of 5 s


class PollConfig(Section):
    loads_ms: Annotated[float, Field(gt=0)] = 1000.0
    health_s: Seconds = 5.0
    discover_s: Seconds = 2.0  # retry interval while a worker has not been discovered
    control_timeout_s: Seconds = 5.0


class ThreadsConfig(Section):
    """Bounds of what is remembered of conversations, and when a thread counts as resumed (first call again)."""

    max_bytes: Annotated[int, Field(gt=0)] = 256 * 1024 * 1024
    memo_checkpoints: Annotated[int, Field(gt=0)] = 131_072  # 16 KiB pieces of bodies that need not be parsed again
    resume_gap_s: Seconds = 60.0


class AgentPeerConfig(Section):
    """Where the node agent of one host listens for its peers."""

    node: Annotated[str, Field(min_length=1)]  # as its own file and `Worker.node` spell it
    host: str
    port: Port
    control_port: Port | None = None  # of its `control` (gRPC); absent: its own wire is asked


class PinsConfig(Section):
    """Bounds of what clients may pin through this gateway; every agent has a cap of its own beside."""

    max_pins: Annotated[int, Field(ge=0)] = 1000
    max_ttl_s: Seconds = 3600.0


class UmbpConfig(Section):
    """A UMBP master (gRPC) over the index of one pool, for engines whose HiCache backend is `mori`."""

    port: Annotated[int, Field(ge=0, le=65535)]  # 0: the system chooses
    host: str = "127.0.0.1"  # there is no authentication: a network that only nodes share
    pool: str | None = None  # absent: the only one
    path: str | None = None  # where what clients told outlives the gateway; absent: nowhere
    expire_s: Seconds = 30.0  # silence after which a client is not believed


class UmbpMasterConfig(Section):
    """Another UMBP master (gRPC), asked what engines hold of a prompt before it is placed; `router.tiers.umbp_consult`."""

    address: Annotated[str, Field(pattern=r"^[^/\s]+:\d+$"), AfterValidator(_check_address)]  # host:port
    pool: str | None = None  # absent: the only one
    nodes: dict[str, str] = {}  # by worker, the node id that its engine reports under where that is not the worker's name
    deadline_ms: Annotated[float, Field(gt=0)] = 5.0
    retry_ms: Annotated[float, Field(gt=0)] = 1000.0  # silence after a failed question
    count_hits: bool = False  # counts in the master's hit index, for which it locks itself


_PREFETCH = PrefetchParams()


class PrefetchConfig(Section):
    """Loadback prefetch; `kvtier.prefetch.params` says what each knob does."""

    mode: Mode = Mode.OFF
    triggers: tuple[Trigger, ...] = tuple(Trigger)  # the others do nothing
    min_probability: Annotated[float, Field(ge=0, le=1)] = _PREFETCH.min_probability
    min_saved_ms: Ms = _PREFETCH.min_saved_ms
    cost_margin: Annotated[float, Field(gt=0)] = _PREFETCH.cost_margin
    first_check_s: Seconds = _PREFETCH.first_check_ms / 1000
    hold_s: Seconds = _PREFETCH.hold_ms / 1000
    warm: bool = True  # send warm requests to engines
    warm_min_probability: Annotated[float, Field(ge=0, le=1)] = _PREFETCH.warm_min_probability
    warm_hold_s: Seconds = _PREFETCH.warm_hold_ms / 1000
    warm_max_queue_ms: Ms = _PREFETCH.warm_max_queue_ms
    warm_window_tokens: Annotated[int, Field(ge=256)] = _PREFETCH.warm_window_tokens
    warm_device_share: Annotated[float, Field(ge=0, le=1)] = _PREFETCH.warm_device_share
    drain_window_s: Seconds = _PREFETCH.drain_window_ms / 1000
    chunk_bytes: Annotated[int, Field(gt=0)] = _PREFETCH.chunk_bytes
    link_share: Annotated[float, Field(gt=0, le=1)] = _PREFETCH.link_share
    link_inflight_bytes: Annotated[int, Field(gt=0)] = _PREFETCH.link_inflight_bytes
    node_inflight_bytes: Annotated[int, Field(gt=0)] = _PREFETCH.node_inflight_bytes
    node_held_bytes: Annotated[int, Field(gt=0)] = _PREFETCH.node_held_bytes
    max_jobs: Annotated[int, Field(ge=1)] = _PREFETCH.max_jobs

    def as_params(self) -> PrefetchParams:
        """Raises ValueError for budgets that cannot hold a chunk."""
        ms = {f"{name.removesuffix('_s')}_ms": getattr(self, name) * 1000 for name in _PREFETCH_SECONDS}
        same = self.model_dump(exclude={"triggers", "warm", *_PREFETCH_SECONDS})
        return PrefetchParams(**ms, **same, triggers=frozenset(self.triggers))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.as_params()
        return self


_PREFETCH_SECONDS = ("first_check_s", "hold_s", "warm_hold_s", "drain_window_s")


class RedisConfig(Section):
    """A Redis through which several gateways share what they learn; `kvtier.shared_index` says how."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)]  # one server, several that share the shards, or any node of a cluster
    cluster: bool = False
    name: Annotated[str, Field(min_length=1)] = "loadback"
    shards: Annotated[int, Field(ge=1, le=1024)] = 8
    ttl_s: Annotated[int, Field(ge=1)] = 3600
    deadline_ms: Annotated[float, Field(gt=0)] = 5.0
    retry_ms: Annotated[float, Field(gt=0)] = 1000.0

    def as_settings(self) -> RedisSettings:
        return RedisSettings(**self.model_dump())

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.shards & (self.shards - 1):
            raise ValueError(f"`shards` must be a power of two, not {self.shards}")
        if self.cluster and len(self.urls) > 1:
            raise ValueError("`cluster` finds its nodes from one of them: give one URL")
        for url in self.urls:
            if not url.startswith(("redis://", "rediss://", "unix://")):
                raise ValueError(f"{url!r} is no Redis URL: expected redis://HOST:PORT")
            _check_port_of(urlsplit(url))
        return self


class IndexConfig(Section):
    max_entries: Annotated[int, Field(ge=256)] = 2_000_000
    max_workers: Annotated[int, Field(gt=0)] = 256  # ranks of one pool, and nodes of its pages, that can be told apart
    kv_events: bool = True
    redis: RedisConfig | None = None  # absent: this gateway keeps what it learns to itself


class CalibrationConfig(Section):
    path: str = ""  # of a JSON file that keeps what was learned of workers across a restart; empty: nothing is kept
    every_s: Annotated[float, Field(ge=0.1, le=1e9)] = 30.0


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    json_lines: bool = False
    turns: bool = False  # one line a turn
    decisions_kept: Annotated[int, Field(ge=0)] = 1000


class Config(Section):
    """The whole tree, as `configs/*.yaml` spells it."""

    listen: ListenConfig = ListenConfig()
    auth: AuthConfig = AuthConfig()
    pools: tuple[PoolConfig, ...]
    policy: PolicyConfig = PolicyConfig()
    admission: AdmissionConfig = AdmissionConfig()
    retry: RetryConfig = RetryConfig()
    breaker: BreakerConfig = BreakerConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    polls: PollConfig = PollConfig()
    threads: ThreadsConfig = ThreadsConfig()
    index: IndexConfig = IndexConfig()
    agents: tuple[AgentPeerConfig, ...] = ()
    prefetch: PrefetchConfig = PrefetchConfig()
    pins: PinsConfig = PinsConfig()
    umbp: UmbpConfig | None = None
    umbp_master: UmbpMasterConfig | None = None
    calibration: CalibrationConfig = CalibrationConfig()
    log: LogConfig = LogConfig()
    seed: int | None = None  # random seed of rooms, ids and near ties; None = from the system

    @model_validator(mode="after")
    def _agents(self) -> Self:
        if twice := _twice(agent.node for agent in self.agents):
            raise ValueError(f"two `agents` have the same node, {twice}: only one of them would be followed")
        return self

    @model_validator(mode="after")
    def _pools(self) -> Self:
        if not self.pools:
            raise ValueError("`pools` is empty: list at least one pool with its workers")
        names = [pool.name for pool in self.pools]
        if twice := _twice(names):
            raise ValueError(f"two pools have the same name, {twice}")
        if twice := _twice(model for pool in self.pools for model in pool.models):
            raise ValueError(f"one model is listed twice, {twice}: a model belongs to one pool")
        workers = [worker for pool in self.pools for _, worker in pool.workers()]
        if twice := _twice(worker.worker_id for worker in workers):
            told = f"workers of two pools have the same name, {twice}"
            raise ValueError(f"{told}, by which the admin API finds them: give each its own")
        if twice := _twice(worker.url for worker in workers):
            raise ValueError(f"one worker URL is listed twice, {twice}")
        for key, section in (("umbp", self.umbp), ("umbp_master", self.umbp_master)):
            if section is not None and section.pool is None and len(names) > 1:
                raise ValueError(f"`{key}.pool` must name one of the pools: there are several")
            if section is not None and section.pool is not None and section.pool not in names:
                raise ValueError(f"`{key}.pool` names {section.pool!r}; pools: {', '.join(names)}")
        for pool in self.pools:
            if not pool.workers():
                raise ValueError(f"pool {pool.name!r} has no workers: list `unified`, or `prefill` and `decode`")
        return self
