"""The comparison: every policy on the same sessions, in turns, from flushed engines and an emptied agent.

In each run the fast prefill server is taken out of service and brought back, then the slow one: sessions have to move, as they
do when a node is upgraded. All routers are told by their own admin API.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from bench.placement.chats import Message, chats
from bench.placement.routers import MODEL, Loadback, Predicted, Router, loadback, smg
from bench.placement.site import SLOW, Site, Sizes, real_site, slowed
from bench.placement.turn import ChatClient, Turn
from bench.replay.wall_clock import WallReplay
from bench.simulate.clients import Ask
from bench.simulate.traces import weka
from bench.simulate.workload import SessionPlan
from bench.validate.scaled import Scale, drawn, scaled_sessions

OURS = ("cost", "longest_prefix", "round_robin")
RIVAL = "smg cache_aware"
POLICIES = (*OURS, RIVAL)
_RECORDED_TOKENS = 131_072  # sessions with longer calls are left out
_HTTP_S = 300.0
_KEPT_DECISIONS = 1000

Tell = Callable[[str], None]


class Outage(msgspec.Struct, frozen=True):
    """A prefill server takes no new turns from `from_s` after a run's start to `to_s`."""

    worker: int
    from_s: float
    to_s: float


class Plan(msgspec.Struct, frozen=True):
    """`sessions` in each run, `concurrency` of them open at once. Before all runs the steady ones, one at a time, with
    no server slow or out."""

    repeats: int = 3
    sessions: int = 11
    concurrency: int = 6
    steady_sessions: int = 32
    ramp_ms: float = 2000.0
    scale: Scale = Scale(max_output_tokens=32)
    steady_scale: Scale = Scale(max_output_tokens=32, max_gap_s=3.0)
    sizes: Sizes = Sizes()
    outages: tuple[Outage, ...] = (Outage(1 - SLOW, 4.0, 6.5), Outage(SLOW, 9.0, 11.5))
    seed: int = 1


class Run(msgspec.Struct, frozen=True):
    repeat: int
    policy: str
    turns: tuple[Turn, ...]
    predicted: tuple[Predicted, ...]  # of this project's gateway
    seconds: float


class Steady(msgspec.Struct, frozen=True):
    """How well the gateway predicts when nothing changes, from a cold start. `workers`: what it says of that itself."""

    turns: tuple[Turn, ...]
    predicted: tuple[Predicted, ...]
    workers: dict[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """Runs in the order in which they were made."""

    plan: Plan
    steady: Steady
    runs: tuple[Run, ...]


class Bench(NamedTuple):
    """What runs while policies are compared."""

    site: Site
    http: httpx.AsyncClient
    ours: Loadback
    routers: Mapping[str, Router]


async def run_experiment(plan: Plan, model_dir: Path, tell: Tell) -> Outcome:
    """Takes some six minutes and 6 GB. Raises `RouterFailed`, ValueError, `httpx.HTTPError` and what launching raises."""
    recorded = weka(context_tokens=_RECORDED_TOKENS, share_system=True)
    sets = drawn(scaled_sessions(recorded, plan.scale), plan.sessions, plan.repeats, plan.seed)
    (steady_set,) = drawn(scaled_sessions(recorded, plan.steady_scale), plan.steady_sessions, 1, plan.seed + 1)
    async with placed(plan, model_dir) as bench:
        steady = await steady_run(bench, plan, steady_set)
        tell(f"steady: {len(steady.turns)} turns, the gateway says of its predictions: {steady.workers}")
        await _warm(bench, plan, sets[0][:2])
        runs = []
        for repeat, policy in order(plan.repeats):
            run = await one_run(bench, plan, sets[repeat], repeat, policy)
            runs.append(run)
            tell(_told(run))
        return Outcome(plan, steady, tuple(runs))


def order(repeats: int) -> Iterator[tuple[int, str]]:
    """Every repeat begins with another policy."""
    for repeat in range(repeats):
        first = repeat % len(POLICIES)
        for policy in POLICIES[first:] + POLICIES[:first]:
            yield repeat, policy


@asynccontextmanager
async def placed(plan: Plan, model_dir: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="loadback-placement-")))
        site = await exits.enter_async_context(real_site(plan.sizes, model_dir))
        ours = await exits.enter_async_context(loadback(site, folder))
        rival = await exits.enter_async_context(smg(site, folder))
        limits = httpx.Limits(max_connections=None)
        http = await exits.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=_HTTP_S, limits=limits))
        yield Bench(site, http, ours, dict.fromkeys(OURS, ours) | {RIVAL: rival})


async def steady_run(bench: Bench, plan: Plan, sessions: tuple[SessionPlan, ...]) -> Steady:
    await bench.site.reset()
    await bench.ours.use("cost")
    calm = msgspec.structs.replace(plan, concurrency=1, outages=())
    turns = await _replay(bench, bench.ours, calm, sessions, "steady")
    predicted = await bench.ours.predictions(min(len(turns), _KEPT_DECISIONS))
    return Steady(tuple(turns), tuple(predicted), await bench.ours.ttft_accuracy())


async def one_run(bench: Bench, plan: Plan, sessions: tuple[SessionPlan, ...], repeat: int, policy: str) -> Run:
    """From a cold start. No policy sees the text of another's run: what a router remembers of it is of no use."""
    router = bench.routers[policy]
    await bench.site.reset()
    await router.use(policy)
    started_s = time.monotonic()
    async with slowed(bench.site, plan.sizes), _outages(router, plan.outages):
        turns = await _replay(bench, router, plan, sessions, f"{repeat}/{policy}")
    seconds = time.monotonic() - started_s
    predicted = await bench.ours.predictions(min(len(turns), _KEPT_DECISIONS)) if policy in OURS else []
    return Run(repeat, policy, tuple(turns), tuple(predicted), seconds)


async def _replay(bench: Bench, router: Router, plan: Plan, sessions: tuple[SessionPlan, ...], salt: str) -> list[Turn]:
    said: dict[str, list[list[Message]]] = {session.name: chats(session, salt) for session in sessions}
    client = ChatClient(bench.http, router.url, MODEL)
    last_ms: dict[str, float] = {}

    async def send(ask: Ask, sent_ms: float) -> Turn:
        name = ask.thread_id
        first = is_first(last_ms.get(name), sent_ms, plan.outages)
        last_ms[name] = sent_ms
        return await client.ask(said[name][ask.index], ask.call.output_tokens, Turn(name, ask.index, sent_ms, first))

    return await WallReplay(send).run(iter(sessions), plan.concurrency, plan.ramp_ms)


def is_first(last_ms: float | None, now_ms: float, outages: tuple[Outage, ...]) -> bool:
    """The session's first call, or its first since a worker was taken out."""
    return last_ms is None or any(last_ms < 1000 * outage.from_s <= now_ms for outage in outages)


@asynccontextmanager
async def _outages(router: Router, outages: tuple[Outage, ...]) -> AsyncIterator[None]:
    """All workers are back when it closes. Raises what the router raises."""
    out: set[int] = set()
    working = asyncio.create_task(_take_turns(router, outages, out))
    try:
        yield
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        for worker in sorted(out):
            await router.bring_back(worker)


async def _take_turns(router: Router, outages: tuple[Outage, ...], out: set[int]) -> None:
    origin_s = time.monotonic()
    for outage in outages:
        await asyncio.sleep(max(0.0, origin_s + outage.from_s - time.monotonic()))
        out.add(outage.worker)
        await router.take_out(outage.worker)
        await asyncio.sleep(max(0.0, origin_s + outage.to_s - time.monotonic()))
        await router.bring_back(outage.worker)
        out.discard(outage.worker)


async def _warm(bench: Bench, plan: Plan, sessions: tuple[SessionPlan, ...]) -> None:
    """A server's first turns are slow, through whichever router they come."""
    for policy in ("round_robin", RIVAL):
        await bench.routers[policy].use(policy)
        await _replay(bench, bench.routers[policy], plan, sessions, f"warm/{policy}")


def _told(run: Run) -> str:
    errors = [turn.error for turn in run.turns if turn.error]
    ended = f"{len(run.turns)} turns in {run.seconds:.0f} s, {len(errors)} errors"
    return f"repeat {run.repeat}, {run.policy}: {ended}" + (f", {errors[0]}" if errors else "")
