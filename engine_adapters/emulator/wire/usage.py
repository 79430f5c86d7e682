"""Token counts as SGLang reports them in chat and completions (wire: openai/usage_processor.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_adapters.emulator.model.request import Cached
from engine_adapters.emulator.worker.agent_pool import STORAGE_NAME
from engine_adapters.emulator.worker.job import Step


def usage(last: Sequence[Step], cache_report: bool) -> dict[str, Any]:
    """Prompt tokens count once for each prompt, however many samples it has."""
    firsts = [step for step in last if step.job.index % step.job.samples == 0]
    prompt = sum(step.prompt_tokens for step in firsts)
    completion = sum(step.tokens for step in last)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": sum(step.cached for step in firsts)} if cache_report else None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def cached_details(last: Sequence[Step]) -> dict[str, Any] | None:
    """`sglext` of a reply whose client asked for it; None when nothing was cached."""
    step = next((step for step in last if step.cached), None)
    if step is None:
        return None
    return {"cached_tokens_details": details_of(step.came_from)}


def details_of(cached: Cached) -> dict[str, Any]:
    """By tier; storage is told where it had some, with its name, as by SGLang."""
    details: dict[str, Any] = {"device": cached.device, "host": cached.host}
    return {**details, "storage": cached.storage, "storage_backend": STORAGE_NAME} if cached.storage else details


def metadata(step: Step, engine: str) -> dict[str, Any]:
    versions = [{"version": "default", "start": 0, "end": step.tokens}]
    return {"weight_version": "default", "weight_versions": versions, "engine": engine}
