"""The experiment: on one real server sessions to fit on and sessions to predict, in turns; then the predictions.

Replays and predictions never run at once: on two cores a fit beside a replay would slow what is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import msgspec

from bench.simulate.traces import weka
from bench.simulate.workload import SessionPlan
from bench.validate.fit import fit
from bench.validate.intervals import Pairs, Ratio, by_session, ratio
from bench.validate.probes import Grid, probe
from bench.validate.real_server import RealServer
from bench.validate.scaled import PAGE_TOKENS, Scale, drawn, scaled_sessions
from bench.validate.timed import Timed, quantile
from bench.validate.virtual import Fitted, VirtualReplay
from engine_adapters.base import Endpoint
from engine_adapters.emulator.model.params import EngineParams
from engine_adapters.launch.pool import launch_unified
from engine_adapters.launch.sglang import SglangSpec
from engine_adapters.sglang.adapter import SglangAdapter

MARKS = {"p50": 0.5, "p90": 0.9}
_WITHIN = 0.2
_RECORDED_TOKENS = 131_072  # sessions with longer calls are left out
_DRAWS = 1000
_HTTP_S = 300.0
_FLUSH_S = 30.0
# Where a fit begins: the order of magnitude of a tiny model on one core. It ends at what was measured, from there or from afar.
_START = EngineParams(
    prefill_base_ms=8.0, prefill_ms_per_token=0.02, prefill_ms_per_token2=0.0, prefill_ms_per_end2=8e-6,
    decode_base_ms=5.0, decode_ms_per_running=1.0, decode_ms_per_context_token=1e-3,
)  # fmt: skip

Tell = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """`sessions` in each of the two sets of a repeat; `concurrency` of them are open at once."""

    repeats: int = 5
    sessions: int = 15
    concurrency: int = 6
    ramp_ms: float = 2000.0
    scale: Scale = Scale()
    grid: Grid = Grid()
    kv_tokens: int = 65_536
    chunk_tokens: int = 2048
    max_running: int = 16
    seed: int = 1


class Repeat(msgspec.Struct, frozen=True):
    """One fit and its prediction. `held_first`: the sessions to predict were measured before those to fit on."""

    number: int
    held_first: bool
    fitted: Fitted
    fit_calls: tuple[Timed, ...]
    measured: tuple[Timed, ...]
    predicted: tuple[Timed, ...]

    @property
    def pairs(self) -> Pairs:
        return by_session(self.predicted, self.measured)


class Outcome(msgspec.Struct, frozen=True):
    plan: Plan
    repeats: tuple[Repeat, ...]

    def pooled(self, share: float) -> Ratio:
        """Over the held-out sessions of all repeats."""
        return ratio([pair for repeat in self.repeats for pair in repeat.pairs], share, _DRAWS, Random(self.plan.seed))

    def of(self, repeat: Repeat, share: float) -> Ratio:
        return ratio(repeat.pairs, share, _DRAWS, Random(self.plan.seed + repeat.number))


class Sets(msgspec.Struct, frozen=True):
    """Disjoint: what a repeat is fitted on, and what it predicts."""

    fit: tuple[SessionPlan, ...]
    held: tuple[SessionPlan, ...]


def within(found: Ratio) -> bool:
    return abs(found.value - 1) <= _WITHIN


def sets_of(plan: Plan) -> list[Sets]:
    """Raises ValueError when the trace has too few sessions."""
    recorded = scaled_sessions(weka(context_tokens=_RECORDED_TOKENS), plan.scale)
    parts = drawn(recorded, plan.sessions, 2 * plan.repeats, plan.seed)
    return [Sets(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


async def run_experiment(plan: Plan, model_dir: Path, tell: Tell) -> Outcome:
    """Takes some six minutes and 2 GB. Raises `ReplayFailed`, ValueError, `httpx.HTTPError` and what launching raises."""
    sets = sets_of(plan)
    async with real_server(plan, model_dir) as site:
        probes, replays = await measure(site, plan, sets, tell)
    return predictions(plan, sets, probes, replays, tell)


class Site(msgspec.Struct, frozen=True):
    server: RealServer
    http: httpx.AsyncClient
    url: str

    async def flush(self) -> None:
        await SglangAdapter().flush_cache(self.http, Endpoint(self.url), _FLUSH_S)


@asynccontextmanager
async def real_server(plan: Plan, model_dir: Path) -> AsyncIterator[Site]:
    """One SGLang that does prefill and decode. Its scheduler does not overlap with the forward: on a CPU nothing runs beside
    that, and each first token would only come out one forward later."""
    base = SglangSpec(
        model_dir, 0, 0, 0, page_size=PAGE_TOKENS, kv_tokens=plan.kv_tokens, chunk_tokens=plan.chunk_tokens,
        max_running=plan.max_running, extra_flags=("--disable-overlap-schedule",),
    )  # fmt: skip
    limits = httpx.Limits(max_connections=None)
    with tempfile.TemporaryDirectory(prefix="loadback-validate-") as folder:
        async with (
            launch_unified(model_dir, Path(folder), base=base) as running,
            httpx.AsyncClient(trust_env=False, timeout=_HTTP_S, limits=limits) as http,
        ):
            yield Site(RealServer(http, running.url, base.model_name), http, running.url)


async def measure(
    site: Site, plan: Plan, sets: list[Sets], tell: Tell
) -> tuple[list[Timed], list[tuple[list[Timed], list[Timed]]]]:
    """Probes of the idle server, and of each repeat the calls to fit on and those to predict."""
    tell("probing the idle server")
    await probe(site.server, msgspec.structs.replace(plan.grid, repeats=1), 0)  # a server's first calls are slow
    probes = await probe(site.server, plan.grid, 1)
    replays = []
    for number, pair in enumerate(sets):
        found: dict[bool, list[Timed]] = {}
        for held in (number % 2 == 1, number % 2 == 0):
            await site.flush()
            plans = pair.held if held else pair.fit
            found[held] = await site.server.replay(iter(plans), plan.concurrency, plan.ramp_ms, 2 + 2 * number + held)
        replays.append((found[False], found[True]))
        tell(f"repeat {number}: {len(found[False])} calls to fit on, {len(found[True])} to predict")
    return probes, replays


def predictions(
    plan: Plan, sets: list[Sets], probes: list[Timed], replays: list[tuple[list[Timed], list[Timed]]], tell: Tell
) -> Outcome:
    """What is to be predicted is only compared, never fitted on."""
    sizes = {"kv_tokens": plan.kv_tokens, "chunk_tokens": plan.chunk_tokens, "max_running": plan.max_running}
    start = Fitted(msgspec.structs.replace(_START, **sizes))
    repeats = []
    for number, (pair, (fit_calls, measured)) in enumerate(zip(sets, replays, strict=True)):
        fitted = fit(start, probes, fit_calls)
        predicted = VirtualReplay(fitted).closed_loop(iter(pair.held), plan.concurrency, plan.ramp_ms)
        repeat = Repeat(number, number % 2 == 1, fitted, tuple(fit_calls), tuple(measured), tuple(predicted))
        repeats.append(repeat)
        tell(f"repeat {number}: " + ", ".join(_told(repeat, name) for name in MARKS))
    return Outcome(plan, tuple(repeats))


def _told(repeat: Repeat, name: str) -> str:
    predicted, measured = (mark_ms(calls, MARKS[name]) for calls in (repeat.predicted, repeat.measured))
    return f"{name} {predicted:.1f} ms predicted, {measured:.1f} measured"


def mark_ms(calls: tuple[Timed, ...], share: float) -> float:
    return quantile([timed.ttft_ms for timed in calls], share)
