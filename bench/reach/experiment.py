"""The experiment: prompts that travel and outlive their servers, then sessions that migrate, with L3 and without.

One pool of real servers runs at a time, because a machine with two cores and little memory holds no more.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median

import httpx
import msgspec

from bench.reach.arms import PREFILLS, Sizes, l2_l3, l2_only
from bench.reach.node import NodeAgent
from bench.reach.pair import Completion, Pairs
from bench.reach.prompts import Session, prompts, sessions
from costmodel.values import Tier
from engine_adapters.launch.pool import Pool, launch_pd_pool
from engine_adapters.launch.sglang import SglangSpec

_REPLY_TOKENS = 12
_WARM_TOKENS = 600
_WARM_SEED = 999_983  # of no prompt that is measured
_HTTP_TIMEOUT_S = 300.0
_HEARTBEATS_S = 8.0  # until decode has noticed dead prefill servers
_SSD_BYTES = 1 << 30

Tell = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """How much of everything."""

    prompts: int = 200
    prompt_tokens: int = 2000
    sessions: int = 12
    turns: int = 4
    common_tokens: int = 512
    first_tokens: int = 500
    turn_tokens: int = 400
    sizes: Sizes = Sizes(l1_tokens=8192, l2_tokens=12_288, l3_tokens=32_768)
    seed: int = 1


class Travelled(msgspec.Struct, frozen=True):
    """Prompts computed on one server and restored on another; then the same after agent and servers were killed."""

    prompts: int
    text_mismatches: int
    restored_from_storage: int
    restored_after_kill: int
    computed_ttft_ms: float
    restored_ttft_ms: float
    after_kill_ttft_ms: float


class Migrated(msgspec.Struct, frozen=True):
    """Shares of prompt tokens that were cached, of sessions whose every turn runs on another server than the last."""

    first_call_hit: float
    later_call_hit: float
    ttft_ms: float  # of later calls


class Hits(msgspec.Struct, frozen=True):
    first_call: float
    later_call: float


class Outcome(msgspec.Struct, frozen=True):
    """`possible`: hits if nothing that any server computed was ever lost or out of reach."""

    travelled: Travelled
    l2_only: Migrated
    l2_l3: Migrated
    possible: Hits


async def run_experiment(plan: Plan, model_dir: Path, tell: Tell) -> Outcome:
    """Takes some 15 minutes. Raises `EngineStartError`, `EngineFailed` and what launching raises."""
    with tempfile.TemporaryDirectory(prefix="loadback-reach-") as name:
        folder = Path(name)
        agent = NodeAgent(folder, dram_bytes=plan.sizes.l3_bytes, ssd_bytes=_SSD_BYTES)
        await agent.start()
        try:
            async with pairs_of(l2_l3(plan.sizes, model_dir, agent, folder), folder) as (pairs, pool):
                tell("sessions that migrate, L2 and L3")
                shared = await migrate(pairs, sessions_of(plan))
                await pairs.flush()
                travelled = await travel(pairs, pool, agent, prompts(plan.prompts, plan.prompt_tokens, plan.seed), tell)
        finally:
            await agent.stop()
        async with pairs_of(l2_only(plan.sizes, model_dir), folder) as (pairs, _):
            tell("sessions that migrate, L2 alone")
            private = await migrate(pairs, sessions_of(plan))
    return Outcome(travelled, private, shared, possible_hits(sessions_of(plan), plan.common_tokens))


def sessions_of(plan: Plan) -> list[Session]:
    return sessions(plan.sessions, plan.turns, plan.common_tokens, plan.first_tokens, plan.turn_tokens, plan.seed)


def possible_hits(wanted: Sequence[Session], common_tokens: int) -> Hits:
    """Of sessions that take turns: the first one computes what is common, every turn after it finds what came before."""
    first = [len(session.turns[0]) for session in wanted]
    later = [len(turn) for session in wanted for turn in session.turns[1:]]
    known = [len(turn) for session in wanted for turn in session.turns[:-1]]
    return Hits(common_tokens * (len(first) - 1) / sum(first), sum(known) / sum(later) if later else 0.0)


@asynccontextmanager
async def pairs_of(spec: SglangSpec, folder: Path) -> AsyncIterator[tuple[Pairs, Pool]]:
    async with (
        launch_pd_pool(spec.model_dir, folder, prefills=PREFILLS, decodes=1, base=spec) as pool,
        httpx.AsyncClient(trust_env=False, timeout=_HTTP_TIMEOUT_S) as http,
    ):
        pairs = Pairs(http, pool, Random(0))
        for prefill in range(PREFILLS):
            throwaway = prompts(PREFILLS, _WARM_TOKENS, _WARM_SEED)[prefill]
            await pairs.ask(prefill, throwaway, 1)  # a server's first turn is slow
        yield pairs, pool


async def travel(pairs: Pairs, pool: Pool, agent: NodeAgent, wanted: Sequence[list[int]], tell: Tell) -> Travelled:
    """Every prompt on server 0, then on server 1; then a crash of both and of the agent, and every prompt once more."""
    computed, restored = [], []
    for number, prompt in enumerate(wanted):
        computed.append(await pairs.ask(0, prompt, _REPLY_TOKENS))
        await agent.settled()
        restored.append(await pairs.ask(1, prompt, _REPLY_TOKENS))
        if number % 20 == 0:
            tell(f"prompt {number} of {len(wanted)}: {restored[-1].cached_by_tier.get(Tier.L3, 0)} tokens from storage")
    await agent.written()
    tell("killing the agent and both prefill servers")
    await crash(pool, agent)
    again = [await pairs.ask(0, prompt, _REPLY_TOKENS) for prompt in wanted]
    texts = zip(computed, restored, again, strict=True)
    return Travelled(
        prompts=len(wanted),
        text_mismatches=sum(len({each.text for each in same}) > 1 for same in texts),
        restored_from_storage=sum(map(from_storage, restored)),
        restored_after_kill=sum(map(from_storage, again)),
        computed_ttft_ms=median(each.ttft_ms for each in computed),
        restored_ttft_ms=median(each.ttft_ms for each in restored),
        after_kill_ttft_ms=median(each.ttft_ms for each in again),
    )


def from_storage(completion: Completion) -> bool:
    """All that can be restored of it (at least one token is always computed) came from storage."""
    return completion.cached_by_tier.get(Tier.L3, 0) >= completion.prompt_tokens * 9 // 10


async def crash(pool: Pool, agent: NodeAgent) -> None:
    """Agent and prefill servers end by kill -9 and start anew; decode has noticed."""
    await agent.kill()
    await asyncio.gather(*(server.process.kill() for server in pool.prefills))
    await asyncio.sleep(_HEARTBEATS_S)
    await agent.start()
    await asyncio.gather(*(server.restart() for server in pool.prefills))


async def migrate(pairs: Pairs, wanted: Sequence[Session]) -> Migrated:
    """Turn by turn, all sessions side by side in time; a turn never runs where the session's last one did."""
    first: list[Completion] = []
    later: list[Completion] = []
    for turn in range(max(len(session.turns) for session in wanted)):
        for number, session in enumerate(wanted):
            done = await pairs.ask((number + turn) % PREFILLS, session.turns[turn], 1)
            (later if turn else first).append(done)
    return Migrated(_hit(first), _hit(later), median(each.ttft_ms for each in later))


def _hit(completions: Sequence[Completion]) -> float:
    return sum(each.cached_tokens for each in completions) / sum(each.prompt_tokens for each in completions)
