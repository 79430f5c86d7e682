"""`/v1/messages` and its `count_tokens` as SGLang 0.5.23 speaks them (wire: anthropic/serving.py, protocol.py)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapters.emulator.reply.plan import ReplyRequest
from engine_adapters.emulator.wire.chat import ChatDialect, complete_calls, offered_tools, spoken_text, tool_results
from engine_adapters.emulator.wire.errors import BadRequest, parse_object
from engine_adapters.emulator.wire.messages_stream import MessagesStream, stop_reason, usage
from engine_adapters.emulator.wire.sampling import Sampling, integer, with_overrides
from engine_adapters.emulator.wire.shapes import Messages, check
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step
from engine_adapters.emulator.worker.options import ENGINE_NAME
from engine_adapters.prompt.sglang_messages import messages_as_chat
from engine_adapters.prompt.template import PromptTemplate

_ROUTED = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessagesDialect:
    head_first = True
    stream_headers = ()

    def __init__(self, sampling: Sampling, template: PromptTemplate, chat: ChatDialect) -> None:
        self._sampling = sampling
        self._template = template
        self._chat = chat

    def parse(self, body: bytes, headers: Mapping[str, str]) -> MessagesCall:
        request = _parse(body)
        limit = integer(request, "max_tokens")
        if limit is None:
            raise BadRequest("max_tokens: Field required")
        if limit <= 0:
            raise BadRequest("max_tokens: Value error, max_tokens must be positive")
        chat = self._as_chat(request)
        choice = chat["tool_choice"]
        wish = ReplyRequest(
            prompt_key=0,
            max_tokens=0,
            tools=offered_tools(chat),
            forced=choice == "required",
            named=choice["function"]["name"] if isinstance(choice, Mapping) else None,
            tool_results=tool_results(chat["messages"]),
            json_schema=((request.get("output_config") or {}).get("format") or {}).get("schema"),
        )
        routed = with_overrides({key: request[key] for key in _ROUTED if key in request}, headers)
        jobs = self._sampling.jobs(routed, [self._chat.prompt_ids(chat)], samples=1, max_tokens=limit, wish=wish)
        return MessagesCall(request, jobs)

    def count_tokens(self, body: bytes) -> dict[str, int]:
        return {"input_tokens": len(self._chat.prompt_ids(self._as_chat(_parse(body))))}

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        if isinstance(error, Failure) and error.status == 400:
            return 400, _error("BadRequestError", error.message)
        kind = ERROR_TYPES.get(error.status, "api_error")
        return error.status, _error(kind, error.message if error.status < 500 else "Internal server error")

    def _as_chat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return messages_as_chat(request, self._template)
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(str(error)) from error


class MessagesCall:
    def __init__(self, request: Mapping[str, Any], jobs: tuple[Job, ...]) -> None:
        self.request = request
        self.jobs = jobs
        self.stream = bool(request.get("stream"))

    def whole(self, last: Sequence[Step]) -> dict[str, Any]:
        step = last[0]
        content: list[dict[str, Any]] = []
        text = spoken_text(step)
        if text:
            content.append({"type": "text", "text": text})
        calls = step.job.plan.calls if complete_calls(step) else ()
        content += [
            {
                "type": "tool_use",
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "name": call.tool.name,
                "input": json.loads(call.arguments),
            }
            for call in calls
        ]
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "content": content or [{"type": "text", "text": ""}],
            "model": self.request["model"],
            "stop_reason": stop_reason(step, called=bool(calls)),
            "usage": usage(step, step.tokens),
            "engine": ENGINE_NAME,
        }

    def events(self) -> MessagesStream:
        return MessagesStream(str(self.request["model"]))


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = parse_object(body)
    except BadRequest as error:
        raise BadRequest("1: JSON decode error") from error
    if not request.get("model"):
        raise BadRequest("model: Field required")
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("messages: Field required")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "system"):
            raise BadRequest(f"messages.{position}.role: Input should be 'user', 'assistant' or 'system'")
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    check(request, Messages)
    return request


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
