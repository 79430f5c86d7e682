"""What a swarm will say: its sessions, written out beforehand from a shape and a random generator.

It knows the form of agent traffic (one product's system prompt and tools in every session, user tasks that differ, subagents
that share the parent's tools, an idle gap); it knows nothing of HTTP or of what the model will answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

_VOCABULARY = (
    "the build of module tests after commit returns value error path cache index block tier worker queue prompt token page "
    "host should read write check file before each call and keep order when list is empty so that result stays same"
)
_WORDS = _VOCABULARY.split()
_CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a swarm. Turns are LLM calls of one root thread; words are about 1.3 tokens, more with a small vocabulary."""

    sessions: int = 4
    turns: int = 6
    system_words: int = 700
    task_words: int = 60
    result_words: int = 120
    subagents: int = 3
    subagent_turns: int = 2
    max_tokens: int = 48
    tool_wait_s: float = 0.05
    idle_s: float = 3.0  # how long the resuming session idles; longer than the gateway's `resume_gap_s`
    stagger_s: float = 0.15  # between the starts of two sessions


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """One append-only conversation. `prompts` are used in order whenever the model answers without a tool call."""

    name: str
    session: str
    cache_key: str | None  # `prompt_cache_key`: some agents send one for the whole session, others nothing
    system: str
    tools: tuple[dict[str, Any], ...]
    prompts: tuple[str, ...]
    turns: int
    start_after_s: float = 0.0
    idle_before_turn: int | None = None
    burst_after_turn: int | None = None
    subagents: tuple[ThreadPlan, ...] = ()

    @property
    def planned_turns(self) -> int:
        return self.turns + sum(child.planned_turns for child in self.subagents)


def plan_swarm(shape: Shape, rng: random.Random) -> tuple[ThreadPlan, ...]:
    """The first session bursts into subagents, the last one idles; the others run straight through."""
    system = "You are a careful coding agent. " + _text(shape.system_words, rng)
    return tuple(_session(index, system, shape, rng) for index in range(shape.sessions))


def _session(index: int, system: str, shape: Shape, rng: random.Random) -> ThreadPlan:
    session = f"s{index + 1}"
    bursts = index == 0 and shape.subagents > 0 and shape.turns > 1
    idles = index == shape.sessions - 1 and shape.turns > 2 and not (bursts and shape.sessions == 1)
    key = f"session-{rng.getrandbits(64):016x}" if index % 2 == 0 else None
    return ThreadPlan(
        name=session,
        session=session,
        cache_key=key,
        system=system,
        tools=TOOLS,
        prompts=_prompts(shape.turns, shape, rng),
        turns=shape.turns,
        start_after_s=index * shape.stagger_s,
        idle_before_turn=shape.turns // 2 if idles else None,
        burst_after_turn=shape.turns // 2 - 1 if bursts else None,
        subagents=_burst(session, key, system, shape, rng) if bursts else (),
    )


def _burst(session: str, key: str | None, system: str, shape: Shape, rng: random.Random) -> tuple[ThreadPlan, ...]:
    return tuple(
        ThreadPlan(
            name=f"{session}.{number + 1}",
            session=session,
            cache_key=key,
            system=system,
            tools=TOOLS,
            prompts=_prompts(shape.subagent_turns, shape, rng),
            turns=shape.subagent_turns,
        )
        for number in range(shape.subagents)
    )


def _prompts(count: int, shape: Shape, rng: random.Random) -> tuple[str, ...]:
    """Every other prompt asks for something that only a tool can tell."""
    tasks = [_text(shape.task_words, rng) for _ in range(count)]
    asks = [f"What is the weather in {rng.choice(_CITIES)} today?" for _ in range(count)]
    return tuple(
        f"{task} {ask}" if number % 2 == 0 else task for number, (task, ask) in enumerate(zip(tasks, asks, strict=True))
    )


def tool_result(name: str, shape: Shape, rng: random.Random) -> str:
    """What a pretend tool finds."""
    return f"{name}: " + _text(shape.result_words, rng)


def _text(words: int, rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    _tool("get_weather", "Get the weather of a city", city="name of the city"),
    _tool("read_file", "Read one text file of the project and return its lines", path="path below the project's root"),
    _tool(
        "bash", "Run one shell command and return what it printed", command="the command line", why="one sentence for the log"
    ),
    _tool("search", "Find the files that contain a pattern", pattern="a regular expression", path="where to look"),
)
