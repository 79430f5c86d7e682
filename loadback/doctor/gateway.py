"""Looks at a running gateway: is it ready, and what does it think of its workers and their event feeds."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

from costmodel.values import Role
from engine_adapters.base import Endpoint, EngineKind
from loadback.admin_api import (
    SHOWN_BYTES,
    TIMEOUT_S,
    AdminError,
    Feed,
    Indexes,
    PoolIndex,
    Predicted,
    PromptModel,
    RestoreLink,
    Worker,
    Workers,
    cause,
    fetch,
    told,
)
from loadback.doctor.check import Check, Target, fail, ok, warn

FIXES = {
    "starting": "wait, or look at the engine's log: it has not been discovered yet",
    "down": "look at the engine's log and its health endpoint",
}


JUDGED_TURNS, MAX_ERROR = 40, 0.5  # as docs/cost-model.md says; fewer turns say little
SMALL = "time of transfer"  # mostly of a ms or less: where it matters, the first token's time is off as well
PROMPT_FIX = "give the engines' own model folder as prompt.model_dir, then loadback doctor --config FILE"


async def check_gateway(http: httpx.AsyncClient) -> tuple[list[Target], list[Check]]:
    """The workers it knows, as targets for the checks of engines."""
    checks = [await _check_ready(http)]
    try:
        workers = (await fetch(http, "/admin/workers", Workers)).workers
        pools = (await fetch(http, "/admin/index", Indexes)).pools
    except AdminError as error:
        return [], [*checks, fail("gateway", "admin", error.found, error.fix)]
    for worker in workers:
        checks += [check_worker(worker), *check_calibration(worker), *(check_feed(worker.id, feed) for feed in worker.events)]
    checks += [check for pool in pools for check in check_prompt_states(pool)]
    return [target_of(worker) for worker in workers], checks


async def _check_ready(http: httpx.AsyncClient) -> Check:
    try:
        response = await http.get("/readyz", timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        what = f"{http.base_url} does not answer: {cause(error, TIMEOUT_S)}"
        return fail("gateway", "ready", what, "start it, or correct --url")
    if response.status_code == httpx.codes.OK:
        return ok("gateway", "ready", "a worker of every role is")
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return fail("gateway", "ready", response.text[:SHOWN_BYTES], "see the workers below")
    return fail("gateway", "ready", *told(f"{http.base_url}/readyz", response))


def check_worker(worker: Worker) -> Check:
    if worker.state == "ready" and worker.breaker in ("", "closed"):
        return ok(worker.id, "state", f"ready, {worker.inflight} turns running")
    if worker.state == "ready":
        fix = "nothing if it passes; else look at the engine's log"
        return warn(worker.id, "state", f"breaker {worker.breaker} after {worker.last_fault}", fix)
    told = f"{worker.state}" + (f": {worker.last_fault}" if worker.last_fault else "")
    mark = fail if worker.state == "down" else warn
    return mark(worker.id, "state", told, _fix_of(worker))


def _fix_of(worker: Worker) -> str:
    if worker.state == "draining":
        return f"to bring it back: when its turns have finished, DELETE /admin/workers/{worker.id}, then POST it again"
    return FIXES.get(worker.state, "look at the engine's log")


def check_calibration(worker: Worker) -> list[Check]:
    """How well its first tokens and what they are made of are predicted, and what the runner-up would have been worth."""
    told = {"time to first token": worker.ttft} | {f"time of {name}": each for name, each in worker.terms.items()}
    checks = [check for name, each in told.items() if (check := _check_predicted(worker.id, name, each)) is not None]
    regret = worker.regret
    if regret.mean_ms is not None and regret.share is not None:
        what = f"{regret.mean_ms:,.0f} ms on average, {regret.share:.0%} of {min(regret.turns, 200)} turns that were looked at"
        checks.append(ok(worker.id, "regret against the runner-up", what))
    return checks + [_check_link(worker.id, link) for link in worker.links if link.reports or link.replies]


def _check_link(worker: str, link: RestoreLink) -> Check:
    """Links that are still what the configuration says are passed over."""
    name = f"restore from {link.tier}" + (f" of {link.source}" if link.source else "")
    told = f"{link.reports} reports of the agent, {link.replies} replies"
    return ok(worker, name, f"{link.bytes_per_ms / 1e6:.2f} GB/s by {told}")


def _check_predicted(worker: str, name: str, told: Predicted) -> Check | None:
    if told.error_p50 is None or told.bias_p50 is None:
        return None
    last = f"the last {min(told.turns, 200)} of {told.turns} streamed turns"
    what = f"median error {told.error_p50:.0%}, bias {told.bias_p50:+.0%} over {last}"
    if told.drifting:
        fix = "nothing if it passes: rates are being learned; else see what has changed at that engine"
        return warn(worker, name, f"drifting: the last 40 are off by far more than those before them; {what}", fix)
    if told.turns >= JUDGED_TURNS and told.error_p50 > MAX_ERROR and name != SMALL:
        fix = "see the rates in GET /admin/workers: placements by this are little better than chance"
        return warn(worker, name, what, fix)
    return ok(worker, name, what)


def check_feed(name: str, feed: Feed) -> Check:
    what = f"event feed of rank {feed.rank}"
    told = f"{feed.state}, {feed.applied} batches, {feed.gaps} gaps"
    if feed.state != "live":
        fix = "residency is guessed until it is live: is the port open, and does the engine publish?"
        return warn(name, what, told, fix)
    if feed.gaps:
        return warn(name, what, told, "messages were lost and replayed: a slow network, or a small buffer_steps")
    return ok(name, what, told)


def check_prompt_states(pool: PoolIndex) -> list[Check]:
    """One check a model and API path that was asked for; none where no tokenizer is configured: lineage is meant to be used
    then."""
    prompts = pool.prompts
    if prompts is None:
        return []
    if pool.prompt == "unusable":
        return [warn(pool.pool, "tokenizer", f"{prompts.error}: residency comes from lineage alone", PROMPT_FIX)]
    told = f"{prompts.threads} threads remembered in {prompts.bytes / 1e6:.1f} MB, {prompts.cpu_ms:.2f} ms CPU a turn"
    return [ok(pool.pool, "tokenizer", told), *(check_model(pool.pool, model) for model in prompts.models)]


def check_model(pool: str, model: PromptModel) -> Check:
    what = f"prompts of {model.model} at {model.path}"
    told = f"{model.agreed} counted as by the engine, {model.verified} verified whole, {model.mismatches} wrong"
    if model.state == "exact":
        return ok(pool, what, f"exact: {told}")
    effect = "every prompt is tokenised whole" if model.state == "whole" else "residency comes from lineage alone"
    return warn(pool, what, f"{effect}: {model.reason}; {told}", PROMPT_FIX)


def target_of(worker: Worker) -> Target:
    """Engine keys are not told by the admin API: protected engines can only be looked at from a configuration."""
    name = (worker.engine or "").lower()
    kind = EngineKind.VLLM if name.startswith("vllm") else EngineKind.OPENAI
    if name.startswith(("sglang", "loadback-emulator")):
        kind = EngineKind.SGLANG
    host = urlsplit(worker.url).hostname
    return Target(worker.id, worker.pool, Role(worker.role), kind, Endpoint(worker.url), host)
