"""One call translated from its dialect: what to compute and how far it has come."""

from __future__ import annotations

import msgspec

from engine_adapters.emulator.model.request import Cached
from engine_adapters.emulator.reply.plan import ReplyPlan

FAKE_BOOTSTRAP_HOST = "2.2.2.2"  # SGLang's host for a prefill without a decode partner


class Bootstrap(msgspec.Struct, frozen=True):
    """Where a disaggregated pair meets: the prefill worker's bootstrap server and the room both were told."""

    host: str | None
    port: int | None
    room: int

    @property
    def fake(self) -> bool:
        return self.host == FAKE_BOOTSTRAP_HOST


class Job(msgspec.Struct, frozen=True):
    """One sequence of a call; a call with n > 1 or a batch of prompts has several, told apart by `index`."""

    rid: str
    index: int
    prompt_ids: tuple[int, ...]
    plan: ReplyPlan
    max_tokens: int
    cache_salt: str | None = None
    extra_key: str | None = None
    bootstrap: Bootstrap | None = None
    samples: int = 1  # jobs of the same prompt
    refusal: str | None = None  # why the engine will not take it, which is found only after the dialect's own checks


class Finish(msgspec.Struct, frozen=True):
    """`reason` is SGLang's: stop, length or abort."""

    reason: str
    matched: int | None = None
    length: int | None = None
    message: str | None = None
    unseen: bool = False  # aborted before the engine looked at it: not even its prompt is counted


class Step(msgspec.Struct, frozen=True):
    """`tokens` tokens of a job's reply exist; `finish` is set with the last of them. `came_from`: of the prompt."""

    job: Job
    tokens: int
    came_from: Cached = Cached()
    finish: Finish | None = None

    @property
    def cached(self) -> int:
        return self.came_from.tokens

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.finish is not None and self.finish.unseen else len(self.job.prompt_ids)

    @property
    def text(self) -> str:
        return "".join(self.job.plan.pieces[: self.tokens])
