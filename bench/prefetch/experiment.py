"""Sessions that idle and return, with prefetch and without, in turns and from the same cold state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec

from bench.prefetch.gateway_here import CLIENT, GatewayHere, Reply, gateway_here
from bench.prefetch.site import Site

ARMS = ("off", "on")
_TAUGHT_GAPS = 20  # that the re-entry model has seen of this client before; without them it expects people, who stay away
_TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "description": "Run it.", "parameters": {"type": "object", "properties": {}}},
    }
]
_WORDS = ("disk", "port", "node", "cache", "agent", "query", "build", "patch", "token", "stream", "latency", "queue", "shard")

Tell = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """`gap_s`: the tool's time. `resume_gap_s`: a turn after a longer one is a first call."""

    repeats: int = 5
    prompt_words: int = 1_500
    gap_s: float = 5.0
    resume_gap_s: float = 3.0
    reply_tokens: int = 24


class Trial(msgspec.Struct, frozen=True):
    """One session in one arm."""

    repeat: int
    arm: str
    first_call_ttft_ms: float
    later_call_ttft_ms: float
    cached_by_tier: dict[str, int]  # of the first call after the gap
    worker: str
    texts: tuple[str, ...]
    planned_bytes: int = 0
    moved_bytes: int = 0
    useful_bytes: int = 0
    wasted_bytes: int = 0
    warmed_bytes: int = 0


class Outcome(msgspec.Struct, frozen=True):
    plan: Plan
    trials: tuple[Trial, ...]

    def of(self, arm: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.arm == arm]

    @property
    def text_mismatches(self) -> int:
        pairs = zip(self.of("off"), self.of("on"), strict=True)
        return sum(off.texts != on.texts for off, on in pairs)

    @property
    def wasted_bytes_ratio(self) -> float:
        moved = sum(trial.moved_bytes for trial in self.trials)
        return sum(trial.wasted_bytes for trial in self.trials) / moved if moved else 0.0


async def run_experiment(site: Site, plan: Plan, tell: Tell) -> Outcome:
    trials = []
    for repeat in range(plan.repeats):
        for arm in ARMS if repeat % 2 == 0 else ARMS[::-1]:
            await site.reset()
            async with gateway_here(_tree(site, plan, arm), site.model) as gateway:
                trial = await _session(site, gateway, plan, repeat, arm)
            trials.append(trial)
            tell(
                f"repeat {repeat}, prefetch {arm}: first call {trial.first_call_ttft_ms:.0f} ms on {trial.worker},"
                f" cached {trial.cached_by_tier}, moved {trial.moved_bytes} of {trial.planned_bytes} bytes,"
                f" later call {trial.later_call_ttft_ms:.0f} ms"
            )
    trials.sort(key=lambda trial: (trial.repeat, trial.arm))
    return Outcome(plan, tuple(trials))


def _tree(site: Site, plan: Plan, arm: str) -> dict[str, Any]:
    prefetch = {"mode": "enabled" if arm == "on" else "disabled", "min_saved_ms": site.min_saved_ms, "first_check_s": 0.1}
    return {
        "seed": 1,
        "polls": {"discover_s": 0.1},
        "threads": {"resume_gap_s": plan.resume_gap_s},
        "pools": [site.pool],
        "agents": site.agents,
        "prefetch": prefetch,
    }


async def _session(site: Site, gateway: GatewayHere, plan: Plan, repeat: int, arm: str) -> Trial:
    """A first turn, a gap, the turn that returns, and one more."""
    _teach(gateway, plan)
    await site.place(gateway)
    key, members = f"session-{repeat}", {"max_tokens": plan.reply_tokens, "tools": _TOOLS}
    messages = _opening(repeat, plan.prompt_words)
    first = await gateway.ask(messages, key, **members)
    began = time.monotonic()
    await site.part(gateway)
    await asyncio.sleep(max(0.0, plan.gap_s - (time.monotonic() - began)))
    messages += [first.message, *_answer(first, "All files are there.")]
    returned = await gateway.ask(messages, key, **members)
    messages += [returned.message, *_answer(returned, "And those, too.")]
    later = await gateway.ask(messages, key, **members)
    tallies = gateway.gateway.prefetch.prefetcher.planner.tallies.values()
    return Trial(
        repeat,
        arm,
        returned.ttft_ms,
        later.ttft_ms,
        returned.cached_by_tier,
        returned.worker,
        tuple(_said(reply) for reply in (first, returned, later)),
        *(
            sum(getattr(tally, name) for tally in tallies)
            for name in ("planned_bytes", "moved_bytes", "useful_bytes", "wasted_bytes", "warmed_bytes")
        ),
    )


def _teach(gateway: GatewayHere, plan: Plan) -> None:
    model = gateway.gateway.prefetch.prefetcher.planner.model
    for number in range(_TAUGHT_GAPS):
        for tool in ("bash", ""):
            model.returned(f"taught-{number}", tool, CLIENT, plan.gap_s * 1000)


def _opening(repeat: int, words: int) -> list[dict[str, Any]]:
    """Another prompt for every repeat, the same in both arms."""
    system = " ".join(f"{_WORDS[(number * 7 + repeat) % len(_WORDS)]}{(number + repeat) % 97}" for number in range(words))
    return [{"role": "system", "content": system}, {"role": "user", "content": f"Look at case {repeat}."}]


def _answer(reply: Reply, text: str) -> list[dict[str, Any]]:
    if not reply.calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in reply.calls]


def _said(reply: Reply) -> str:
    """Without call ids, which engines draw."""
    return reply.text + "".join(f"{call['function']['name']}({call['function']['arguments']})" for call in reply.calls)


def medians(outcome: Outcome, field: str) -> dict[str, float]:
    return {arm: round(median(getattr(trial, field) for trial in outcome.of(arm)), 1) for arm in ARMS}
