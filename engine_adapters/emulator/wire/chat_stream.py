"""The chunks of a streamed chat reply, shaped as SGLang's (wire: openai/sse_utils.py, `_process_tool_call_stream`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.wire.errors import openai_stream_error
from engine_adapters.emulator.wire.usage import cached_details, usage
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Step

DONE = b"data: [DONE]\n\n"


class ChatStream:
    """`logprobs(step, start)` gives the object for the tokens since `start`, or None."""

    def __init__(
        self,
        *,
        chat_id: str,
        created: int,
        model: str,
        parses_tools: bool,
        logprobs: Callable[[Step, int], dict[str, Any] | None],
        options: Mapping[str, Any],
        cache_report: bool,
        cache_details: bool,
    ) -> None:
        self._head = {"id": chat_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._parses_tools = parses_tools
        self._logprobs = logprobs
        self._include_usage = bool(options.get("include_usage"))
        self._continuous_usage = bool(options.get("continuous_usage_stats"))
        self._cache_report = cache_report
        self._cache_details = cache_details
        self._told: dict[int, _Told] = {}

    def start(self) -> list[bytes]:
        return []

    def step(self, step: Step) -> list[bytes]:
        parts = []
        told = self._told.get(step.job.index)
        if told is None:
            told = self._told[step.job.index] = _Told()
            delta = {"reasoning_content": None, "role": "assistant", "content": ""}
            parts.append(self._chunk(step, delta))
        start, told.tokens = told.tokens, step.tokens
        pieces = step.job.plan.pieces[start : step.tokens]
        told.text += "".join(pieces)
        logprobs = self._logprobs(step, start)
        for delta in self._deltas(step, told):
            parts.append(self._chunk(step, delta, logprobs))
            logprobs = None
        if logprobs is not None:
            parts.append(self._chunk(step, {"reasoning_content": None}, logprobs))
        return parts

    def end(self, last: Sequence[Step]) -> list[bytes]:
        parts = [self._finish(step) for step in last]
        details = cached_details(last) if self._cache_details else None
        if details is not None:
            parts.append(_data({**self._head, "choices": [], "usage": None, "sglext": details}))
        return [*parts, *self._usage(last), DONE]

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        return [openai_stream_error(failure.status, failure.message), *self._usage(last), DONE]

    def _deltas(self, step: Step, told: _Told) -> list[dict[str, Any]]:
        plan = step.job.plan
        if not (plan.calls and self._parses_tools):
            new, told.content = told.text[told.content :], len(told.text)
            return [self._content(new)] if new else []
        if len(told.text) < plan.name_end:
            return []
        deltas = []
        arguments = plan.calls[0].arguments
        if not told.named:
            told.named = True
            deltas.append(_call_delta(f"call_{uuid.uuid4().hex[:24]}", plan.calls[0].tool.name, ""))
        known = min(len(told.text) - plan.arguments_at, len(arguments))
        if known > told.arguments:
            deltas.append(_call_delta(None, None, arguments[told.arguments : known]))
            told.arguments = known
        return deltas

    def _content(self, text: str) -> dict[str, Any]:
        if self._parses_tools:  # these chunks come from another serialiser, which writes every member
            return {"role": None, "content": text, "reasoning_content": None}
        return {"reasoning_content": None, "content": text}

    def _finish(self, step: Step) -> bytes:
        finish = step.finish
        reason = finish.reason if finish else "stop"
        told = self._told.get(step.job.index)
        if reason == "stop" and told is not None and told.named:
            reason = "tool_calls"
        matched = finish.matched if finish else None
        return _data({**self._head, "choices": [_choice(step, {"reasoning_content": None}, None, reason, matched)]})

    def _usage(self, last: Sequence[Step]) -> list[bytes]:
        if not self._include_usage:
            return []
        return [_data({**self._head, "choices": [], "usage": usage(last, self._cache_report)})]

    def _chunk(self, step: Step, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head, "choices": [_choice(step, delta, logprobs, None, None)]}
        if self._continuous_usage and "role" not in delta:
            chunk["usage"] = usage([step], self._cache_report)
        elif "tool_calls" in delta or (self._parses_tools and delta.get("role", "") is None):
            chunk["usage"] = None
        return _data(chunk)


class _Told:
    """How much of one choice has been sent."""

    __slots__ = ("arguments", "content", "named", "text", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.text = ""
        self.content = 0
        self.named = False
        self.arguments = 0


def _choice(
    step: Step, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None, matched: int | None
) -> dict[str, Any]:
    return {
        "index": step.job.index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "matched_stop": matched,
    }


def _call_delta(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "index": 0, "type": "function", "function": function}
    return {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
