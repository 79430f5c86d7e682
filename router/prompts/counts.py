"""What became of derived prompts, counted per pool, for the metrics and the admin API."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

_WEIGHT = 0.05


class Fallback(StrEnum):
    """Why a turn's prompt was not, or not exactly, gone on with."""

    UNUSABLE = "unusable"  # the model folder could not be opened
    UNSUITED = "unsuited"  # media, LoRA, a namespace, or an API path whose prompts are not known
    REFUSED = "refused"  # template or profile refused what the engine took
    CRASHED = "crashed"  # a fault of ours
    BUSY = "busy"  # too many prompts at once
    LATE = "late"  # placed before the prompt was there
    COUNT = "count"  # the engine counted other tokens
    DIFFERS = "differs"  # whole tokenisation gave other ids
    WHOLE = "whole"  # tokenised whole: this thread or model is not trusted to be gone on with
    LINEAGE = "lineage"  # not derived: this thread or model is not trusted at all


class PromptCounts:
    """`cpu_ms` is a moving average of one delta."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()  # by level
        self.fallbacks: Counter[str] = Counter()
        self.compared: Counter[tuple[str, str]] = Counter()  # with the engine's count or whole ids: right, wrong
        self.forwarded = 0
        self.cpu_ms = 0.0

    def took(self, cpu_ms: float) -> None:
        self.cpu_ms += _WEIGHT * (cpu_ms - self.cpu_ms) if self.cpu_ms else cpu_ms
