"""The events of a streamed Messages reply, in SGLang's order (wire: anthropic/serving.py `_generate_anthropic_stream`)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Step

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded_error"}


class MessagesStream:
    """One content block: text, or a tool call whose input arrives in pieces."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex}"
        self._started = False
        self._block: str | None = None
        self._text = ""
        self._seen = 0
        self._told = 0

    def start(self) -> list[bytes]:
        return []

    def step(self, step: Step) -> list[bytes]:
        plan = step.job.plan
        self._text += "".join(plan.pieces[self._seen : step.tokens])
        self._seen = step.tokens
        events: list[bytes] = []
        if plan.calls:
            if len(self._text) >= plan.name_end:
                call = plan.calls[0]
                block = {"type": "tool_use", "id": f"call_{uuid.uuid4().hex[:24]}", "name": call.tool.name, "input": {}}
                events += self._open(step, block)
                known = min(len(self._text) - plan.arguments_at, len(call.arguments))
                if known > self._told:
                    piece, self._told = call.arguments[self._told : known], known
                    events.append(self._delta({"type": "input_json_delta", "partial_json": piece}))
        elif len(self._text) > self._told:
            events += self._open(step, {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": self._text[self._told :]}))
            self._told = len(self._text)
        return events

    def end(self, last: Sequence[Step]) -> list[bytes]:
        step = last[0]
        events = [*self._message_start(None), *self._close()]
        delta = {"stop_reason": stop_reason(step, called=self._block == "tool_use")}
        events.append(_event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": step.tokens}}))
        return [*events, _event({"type": "message_stop"})]

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        error = {"type": _ERROR_TYPES.get(failure.status, "api_error"), "message": failure.message}
        return [
            *self._message_start(None),
            *self._close(),
            _event({"type": "error", "error": error}),
            _event({"type": "message_stop"}),
        ]

    def _open(self, step: Step, block: dict[str, Any]) -> list[bytes]:
        if self._block is not None:
            return []
        self._block = block["type"]
        return [*self._message_start(step), _event({"type": "content_block_start", "index": 0, "content_block": block})]

    def _close(self) -> list[bytes]:
        return [_event({"type": "content_block_stop", "index": 0})] if self._block is not None else []

    def _message_start(self, step: Step | None) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        counted = usage(step, 0) if step is not None else {"input_tokens": 0, "output_tokens": 0}
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model,
            "usage": counted,
        }
        return [_event({"type": "message_start", "message": message})]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": 0, "delta": delta})


def usage(step: Step, output_tokens: int) -> dict[str, int]:
    """Cached prompt tokens are counted apart and only named when there are some."""
    counted = {"input_tokens": step.prompt_tokens - step.cached, "output_tokens": output_tokens}
    return {**counted, "cache_read_input_tokens": step.cached} if step.cached else counted


def stop_reason(step: Step, *, called: bool) -> str:
    reason = step.finish.reason if step.finish else "stop"
    return "tool_use" if called and reason == "stop" else _STOP_REASONS.get(reason, "end_turn")


def _event(value: dict[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
