"""`loadback demo`: an embedded pool, agent sessions through it, and what became of every turn."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from typing import Annotated

import httpx
import msgspec
import typer
from rich.console import Console

from bench.swarm.plan import Shape, plan_swarm
from bench.swarm.swarm import run_swarm
from bench.swarm.turns import TurnRecord, summary
from costmodel.accuracy import Accuracy
from loadback.admin_api import AdminError, Decisions, PastTurn, Tiers, fetch
from loadback.maintenance import Midway, take_out_in_turn
from loadback.pool_spec import MODEL_NAME, PAGE_BYTES, TINY_MODEL, EngineChoice, GatewaySpec, PoolSpec
from loadback.stack import Stack, running_stack
from loadback.swarm_display import SwarmDisplay
from loadback.terminal import run_reporting, say
from loadback.tier_tables import moved_bytes, prefetch_table, prefetched, tiers_table, tokens_by_tier
from loadback.turn_tables import join, sessions_table, turns_table
from loadback.up_command import (
    START_ERRORS,
    DecodesOption,
    EngineOption,
    HostOption,
    ModelOption,
    PolicyOption,
    PortOption,
    PrefillsOption,
    welcome,
)

INTERRUPTED = 130
RESUME_GAP_S = 1.5  # so that a demo can show a resumed session without a minute's wait
IDLE_S = 2.5
TOOL_WAIT_S = 0.4  # long enough to move KV meanwhile
TOLD_S = 30.0
TOLD_POLL_S = 0.1
DECISIONS_LIMIT = 1000
TABLE_WIDTH = 124  # tables are not cut where the terminal is narrow or none
SHAPES = {
    EngineChoice.EMULATOR: Shape(
        system_words=500, task_words=300, result_words=250, max_tokens=160, tool_wait_s=TOOL_WAIT_S, idle_s=IDLE_S
    ),
    EngineChoice.SGLANG: Shape(system_words=300, result_words=60, max_tokens=48, idle_s=IDLE_S),  # one CPU core computes it
}

TURNS_LEGEND = f"""\
Turns and sessions
  worker         p0>d0: prefill worker p0 computed the prompt, decode worker d0 wrote the reply
  call           first: a thread's first turn, or its first after {RESUME_GAP_S:g} s without one; later: every other
  cached         share of the prompt's tokens that were not computed again; from tier: how many came from where
  L1, L2, L3     the worker's device memory, its host memory, and the node agent's pages, which all workers of a node share
  first event    from dispatch to the engine's first event, as the gateway predicted and saw it
  whole turn     from the turn's arrival to the reply's last byte, likewise
  first content  from the client's request to the reply's first content (lines above the tables; ttft_ms in the summary)
  tier of hit    turns by the farthest tier that served a part of the prompt; miss: all of it was computed
"""
TIERS_LEGEND = """\
Tiers and prefetch
  bytes moved    by engines and the node agent; SSD to L3 happens when pages that had sunk are wanted again
  trigger        what prefetch acted on: tool_call, a tool runs, so a turn will follow; turn_end, a reply ended, so one may;
                 decision, a turn was placed, and what it wants from elsewhere came first; resume, a quiet session may go on;
                 drain, a worker was taken out and what its sessions need was brought to the others; scale_out, a worker came
                 and was brought what many use; explicit, a client asked
  jobs           consumed: the turn came; expired, cancelled: it did not, or nothing had to be done; failed: nothing could be
  MB             planned to be brought near; useful: a turn used it; wasted: none did; late: it came after the turn was sent;
                 warmed: computed or loaded into a worker's device memory beforehand; wasted after it: for nothing
  ms saved       that the turns were predicted to save
"""

OnceOption = Annotated[bool, typer.Option("--once", help="Stop after the sessions; the last line is one JSON object.")]
JsonOption = Annotated[bool, typer.Option("--json", help="No tables: print the JSON object only.")]
SessionsOption = Annotated[int, typer.Option(min=1, max=64, help="Agent sessions at once.")]
TurnsOption = Annotated[int, typer.Option(min=1, max=100, help="Model calls of each session, its subagents' not counted.")]
SeedOption = Annotated[int, typer.Option(help="Of what the sessions say.")]


def demo(
    once: OnceOption = False,
    engine: EngineOption = EngineChoice.EMULATOR,
    port: PortOption = 8000,
    host: HostOption = "127.0.0.1",
    sessions: SessionsOption = 4,
    turns: TurnsOption = 6,
    prefills: PrefillsOption = 2,
    decodes: DecodesOption = 1,
    model_dir: ModelOption = TINY_MODEL,
    policy: PolicyOption = "cost",
    seed: SeedOption = 1,
    json_only: JsonOption = False,
) -> None:
    """Run agent sessions through an embedded pool and show where each turn went and what it cost.

    The sessions share a system prompt and tools, as those of one agent product do; one of them bursts into subagents and one
    idles and resumes. Emulated prefill workers share a node agent's pages; each is taken out for a while, so that its sessions
    go on elsewhere. Afterwards the pool stays up for a client of yours, until Ctrl-C.

    [bold]Examples[/bold]

      loadback demo

      loadback demo --once --sessions 8 --policy round_robin

      loadback demo --engine sglang
    """
    pool = PoolSpec(engine, prefills, decodes, model_dir)
    gateway = GatewaySpec(host, port, policy, resume_gap_s=RESUME_GAP_S)
    shape = replace(SHAPES[engine], sessions=sessions, turns=turns)
    work = _demo(pool, gateway, shape, random.Random(seed), once=once, json_only=json_only)
    raise typer.Exit(run_reporting(work, (*START_ERRORS, AdminError), interrupted_status=INTERRUPTED))


async def _demo(pool: PoolSpec, gateway: GatewaySpec, shape: Shape, rng: random.Random, *, once: bool, json_only: bool) -> int:
    async with running_stack(pool, gateway) as stack:
        say(f"{shape.sessions} agent sessions of {shape.turns} turns through {stack.gateway.url}/v1")
        async with httpx.AsyncClient(base_url=stack.gateway.url, trust_env=False) as http:
            turns = await _run_sessions(stack, http, shape, rng)
            past = (await fetch(http, f"/admin/decisions?limit={DECISIONS_LIMIT}", Decisions)).decisions
            tiers = await _settled_tiers(http)
        if not json_only:
            _print_tables(turns, past, tiers)
        result = summary(pool.engine.value, turns) | {"predicted": prediction_error(past)} | tiers_summary(past, tiers)
        if not once:
            print(json.dumps(result) if json_only else welcome(pool, stack), flush=True)
            if not await stack.serve_until_told():
                return 1
    if once:
        print(json.dumps(result), flush=True)
    return 1 if result["errors"] else 0


def prediction_error(past: list[PastTurn]) -> dict[str, object]:
    """How far first events were off what the gateway predicted, over the latter half of the turns: by then it has learned.

    Medians of |predicted - actual| / actual, and of the same with its sign: above 0 turns took longer than predicted.
    """
    accuracy = Accuracy()
    told = [turn for turn in past if turn.predicted is not None and turn.actual.ttft_ms]
    half = told[len(told) // 2 :]
    for turn in half:
        if turn.predicted is not None and turn.actual.ttft_ms is not None:
            accuracy.observe(turn.predicted.ttft_ms, turn.actual.ttft_ms)
    return {"turns": len(half), "ttft_error_p50": accuracy.error, "ttft_bias_p50": accuracy.bias}


def tiers_summary(past: list[PastTurn], tiers: Tiers) -> dict[str, object]:
    """The tiers' part of the last line: tokens by what served them, bytes that agents moved, what prefetch did."""
    moved = moved_bytes(tiers, PAGE_BYTES)
    return {
        "tokens_by_tier": tokens_by_tier(past),
        "agent_bytes": msgspec.structs.asdict(moved),
        "prefetch": msgspec.structs.asdict(prefetched(tiers)),
    }


async def _run_sessions(stack: Stack, http: httpx.AsyncClient, shape: Shape, rng: random.Random) -> list[TurnRecord]:
    """After a third of it, two workers that share a pool are taken out for a while, one after the other."""
    plans = plan_swarm(shape, rng)
    pooled = [member for member in stack.members if member.pooled]
    with SwarmDisplay(plans, Console(stderr=True)) as display:
        midway = Midway(display, plans)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(run_swarm(stack.gateway.url, MODEL_NAME, shape, plans, midway))
            if len(pooled) > 1:
                await midway.reached.wait()
                await take_out_in_turn(http, pooled[:2])
    return running.result()


async def _settled_tiers(http: httpx.AsyncClient) -> Tiers:
    """Once the gateway has asked every agent that answers after the last turn, which it does every other second."""
    ended_s = time.monotonic()
    async with asyncio.timeout(TOLD_S):
        while True:
            since_ms = 1000 * (time.monotonic() - ended_s)
            tiers = await fetch(http, "/admin/tiers", Tiers)
            if all(node.age_ms is not None and node.age_ms < since_ms for node in tiers.nodes if node.up):
                return tiers
            await asyncio.sleep(TOLD_POLL_S)


def _print_tables(turns: list[TurnRecord], past: list[PastTurn], tiers: Tiers) -> None:
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    seen = join(turns, past)
    console.print(turns_table(seen))
    console.print(sessions_table(seen))
    if tiers.nodes:
        console.print(tiers_table(tokens_by_tier(past), moved_bytes(tiers, PAGE_BYTES)))
        console.print(prefetch_table(tiers))
    console.print(TURNS_LEGEND + (TIERS_LEGEND if tiers.nodes else ""), highlight=False, soft_wrap=True)
