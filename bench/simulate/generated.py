"""Workloads that no trace shows: sessions shaped like ProgramBench, and a fork of subagents over one long prefix.

All figures are from published statistics, named beside them. Deterministic by the generator passed in.
"""

from __future__ import annotations

import math
import random

from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload

PAGE_TOKENS = 64
_SESSION_PAGES = 1 << 40

# GoalBench usage of 200 ProgramBench tasks: calls a task p10/50/90 = 49/80/116, about 640 output tokens a call.
_CALLS_MEDIAN, _CALLS_SIGMA = 80.0, math.log(116 / 80) / 1.2816
_OUTPUT_MEDIAN, _OUTPUT_SIGMA = 430.0, 0.9  # mean 640
# Its mean input is 60k a call; tools, system prompt and task make about 15k, and what tools answer about 500 a call.
_START_TOKENS, _APPEND_MEDIAN, _APPEND_SIGMA = 15_000, 330.0, 0.9  # mean 500
_SHARED_TOKENS = 12_800  # tools and system prompt, the same in every session of one agent; assumed
# Tool time p50/p90 = 0.285/13.6 s, 4 % over a minute: TraceLab (arXiv 2606.30560).
_TOOL_MEDIAN_S, _TOOL_SIGMA, _TOOL_MAX_S = 0.285, math.log(13.6 / 0.285) / 1.2816, 300.0

# llm-d's fork: 43 subagents over a 40k-token prefix (blog of 2026-08-15); what each goes on to do is assumed.
FORK_CHILDREN, FORK_PREFIX_TOKENS = 43, 40_000
_TASK_TOKENS, _CHILD_CALLS = 2_000, 6


def programbench(sessions: int, rng: random.Random, *, context_tokens: int) -> Workload:
    """Append-only sessions that share tools and system prompt. Raises `ValueError` where none fits."""
    plans = (_programbench_session(number, rng, context_tokens) for number in range(sessions))
    fitting = tuple(plan for plan in plans if plan.calls)
    if not fitting:
        raise ValueError(f"sessions begin with {_START_TOKENS:,} tokens: a context of {context_tokens:,} holds none")
    return Workload("programbench", PAGE_TOKENS, fitting)


def fork(groups: int, rng: random.Random, *, context_tokens: int, children: int = FORK_CHILDREN) -> Workload:
    """Each session: one root call over the prefix, then all children at once over the same prefix, then the root goes on.
    Raises `ValueError` where a context does not hold the longest call."""
    plans = tuple(_fork_session(number, rng, children) for number in range(groups))
    calls = [call for plan in plans for thread in plan.threads for call in thread.calls]
    longest = max(call.prompt_tokens + call.output_tokens for call in calls)
    if longest > context_tokens:
        raise ValueError(f"a fork's longest call takes {longest:,} tokens: a context of {context_tokens:,} does not hold it")
    return Workload("fork", PAGE_TOKENS, plans)


def _programbench_session(number: int, rng: random.Random, context_tokens: int) -> SessionPlan:
    base = (number + 1) * _SESSION_PAGES
    calls: list[Call] = []
    prompt = _START_TOKENS
    for _ in range(max(1, round(_lognormal(rng, _CALLS_MEDIAN, _CALLS_SIGMA)))):
        output = max(1, round(_lognormal(rng, _OUTPUT_MEDIAN, _OUTPUT_SIGMA)))
        if prompt + output > context_tokens:
            break
        gap_ms = min(_lognormal(rng, _TOOL_MEDIAN_S, _TOOL_SIGMA), _TOOL_MAX_S) * 1000 if calls else 0.0
        calls.append(Call(prompt, output, _shared_then_own(base, prompt), gap_ms))
        prompt += output + max(1, round(_lognormal(rng, _APPEND_MEDIAN, _APPEND_SIGMA)))
    return SessionPlan(f"pb{number}", (ThreadPlan(tuple(calls)),))


def _fork_session(number: int, rng: random.Random, children: int) -> SessionPlan:
    base = (number + 1) * _SESSION_PAGES
    prefix_pages = FORK_PREFIX_TOKENS // PAGE_TOKENS
    root = (
        Call(FORK_PREFIX_TOKENS + _TASK_TOKENS, 800, (base, prefix_pages + _TASK_TOKENS // PAGE_TOKENS)),
        Call(FORK_PREFIX_TOKENS + 2 * _TASK_TOKENS, 400, (base, prefix_pages + 2 * _TASK_TOKENS // PAGE_TOKENS)),
    )
    threads = [ThreadPlan(root)]
    for child in range(children):
        own = base + (child + 1) * (1 << 24)
        threads.append(ThreadPlan(_child_calls(rng, base, own), 0, 0))
    return SessionPlan(f"fork{number}", tuple(threads))


def _child_calls(rng: random.Random, base: int, own: int) -> tuple[Call, ...]:
    """The prefix's pages, then the child's own; each call repeats the one before with its reply and a tool's answer."""
    calls: list[Call] = []
    tail = _TASK_TOKENS
    for _ in range(_CHILD_CALLS):
        output = max(1, round(_lognormal(rng, _OUTPUT_MEDIAN, _OUTPUT_SIGMA)))
        gap_ms = min(_lognormal(rng, _TOOL_MEDIAN_S, _TOOL_SIGMA), _TOOL_MAX_S) * 1000 if calls else 0.0
        runs = (base, FORK_PREFIX_TOKENS // PAGE_TOKENS, own, tail // PAGE_TOKENS)
        calls.append(Call(FORK_PREFIX_TOKENS + tail, output, runs, gap_ms))
        tail += output + max(1, round(_lognormal(rng, _APPEND_MEDIAN, _APPEND_SIGMA)))
    return tuple(calls)


def _shared_then_own(base: int, prompt_tokens: int) -> tuple[int, ...]:
    shared = _SHARED_TOKENS // PAGE_TOKENS
    return (1, shared, base, prompt_tokens // PAGE_TOKENS - shared)


def _lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(rng.gauss(0.0, sigma))
