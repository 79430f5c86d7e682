"""`/v1/completions` as SGLang 0.5.23 speaks it (wire: openai/serving_completions.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.reply.plan import ReplyRequest
from engine_adapters.emulator.wire.chat_stream import DONE
from engine_adapters.emulator.wire.errors import BadRequest, invalid, openai_refusal, openai_stream_error, parse_object
from engine_adapters.emulator.wire.logprobs import completion_logprobs
from engine_adapters.emulator.wire.sampling import Sampling, integer
from engine_adapters.emulator.wire.shapes import Completion, check, prompts
from engine_adapters.emulator.wire.usage import cached_details, metadata, usage
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step
from engine_adapters.emulator.worker.options import ENGINE_NAME
from engine_adapters.prompt.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 16


class CompletionDialect:
    head_first = False
    stream_headers = ()

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer, cache_report: bool) -> None:
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._cache_report = cache_report

    def parse(self, body: bytes, headers: Mapping[str, str]) -> CompletionCall:
        request = parse_object(body)
        if "prompt" not in request:
            raise invalid("missing", ("body", "prompt"), "Field required")
        check(request, Completion)
        found = prompts(request["prompt"], "prompt")
        limit = integer(request, "max_tokens", _DEFAULT_MAX_TOKENS)
        if limit is not None and limit <= 0:
            raise invalid("value_error", ("body", "max_tokens"), "Value error, max_tokens must be positive", limit)
        ids = [tuple(self._tokenizer.encode(one)) if isinstance(one, str) else tuple(one) for one in found]
        samples = integer(request, "n", 1) or 1
        wish = ReplyRequest(prompt_key=0, max_tokens=0, ignore_eos=bool(request.get("ignore_eos")))
        jobs = self._sampling.jobs(request, ids, samples=samples, max_tokens=limit, wish=wish)
        return CompletionCall(request, jobs, self._tokenizer, self._cache_report)

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        return error.status, openai_refusal(error)


class CompletionCall:
    """A completion request and how its reply is worded."""

    def __init__(self, request: Mapping[str, Any], jobs: tuple[Job, ...], tokenizer: Tokenizer, cache_report: bool) -> None:
        self.request = request
        self.jobs = jobs
        self.tokenizer = tokenizer
        self.cache_report = cache_report
        self.stream = bool(request.get("stream"))
        self.head = {
            "id": jobs[0].rid,
            "object": "text_completion",
            "created": int(time.time()),
            "model": str(request.get("model") or "default"),
        }

    def whole(self, last: Sequence[Step]) -> dict[str, Any]:
        reply = {
            **self.head,
            "choices": [self.choice(step, 0, self.echo(step) + step.text) for step in last],
            "usage": usage(last, self.cache_report),
            "metadata": metadata(last[0], ENGINE_NAME),
        }
        details = self.details(last)
        return {**reply, "sglext": details} if details else reply

    def events(self) -> CompletionStream:
        return CompletionStream(self)

    def choice(self, step: Step, start: int, text: str) -> dict[str, Any]:
        """A choice of this step's tokens from `start` on."""
        finish = step.finish
        return {
            "index": step.job.index,
            "text": text,
            "logprobs": self._logprobs(step, start),
            "finish_reason": finish.reason if finish else None,
            "matched_stop": finish.matched if finish else None,
        }

    def echo(self, step: Step) -> str:
        if not self.request.get("echo"):
            return ""
        return self.tokenizer.decode(step.job.prompt_ids, skip_special_tokens=True)

    def details(self, last: Sequence[Step]) -> dict[str, Any] | None:
        return cached_details(last) if self.request.get("return_cached_tokens_details") else None

    def _logprobs(self, step: Step, start: int) -> dict[str, Any] | None:
        top = self.request.get("logprobs")
        if top is None:
            return None
        return completion_logprobs(self.tokenizer, step.job.plan.token_ids[start : step.tokens], int(top))


class CompletionStream:
    """One chunk a step; the last step's chunk carries the finish reason."""

    def __init__(self, call: CompletionCall) -> None:
        self._call = call
        self._told: dict[int, int] = {}
        options = call.request.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._continuous_usage = bool(options.get("continuous_usage_stats"))

    def start(self) -> list[bytes]:
        return []

    def step(self, step: Step) -> list[bytes]:
        index = step.job.index
        start = self._told.get(index, 0)
        text = "".join(step.job.plan.pieces[start : step.tokens])
        if index not in self._told:
            text = self._call.echo(step) + text
        self._told[index] = step.tokens
        chunk_usage = usage([step], False) if self._continuous_usage else None
        return [_data({**self._call.head, "choices": [self._call.choice(step, start, text)], "usage": chunk_usage})]

    def end(self, last: Sequence[Step]) -> list[bytes]:
        details = self._call.details(last)
        extra = [_data({**self._call.head, "choices": [], "usage": None, "sglext": details})] if details else []
        return [*extra, *self._usage(last), DONE]

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        return [openai_stream_error(failure.status, failure.message), *self._usage(last), DONE]

    def _usage(self, last: Sequence[Step]) -> list[bytes]:
        if not self._include_usage:
            return []
        counted = {key: value for key, value in usage(last, self._call.cache_report).items() if value is not None}
        return [_data({**self._call.head, "choices": [], "usage": counted})]


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
