"""`/v1/responses` as SGLang 0.5.23 speaks it (wire: openai/serving_responses.py, protocol.py)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapters.emulator.reply.plan import ReplyRequest
from engine_adapters.emulator.reply.tools import OfferedTool, ToolKind
from engine_adapters.emulator.wire.chat import ChatDialect, complete_calls, spoken_text, tool_results
from engine_adapters.emulator.wire.errors import BadRequest, invalid, parse_object
from engine_adapters.emulator.wire.responses_items import call_item, error_of, message_item, status_of
from engine_adapters.emulator.wire.responses_stream import ResponsesStream
from engine_adapters.emulator.wire.sampling import Sampling, integer, wanted_schema
from engine_adapters.emulator.wire.shapes import Responses, check
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step
from engine_adapters.prompt.sglang_responses import effective_tool_choice, responses_as_chat
from engine_adapters.prompt.template import PromptTemplate

_HEADROOM = 2  # tokens that the engine keeps back from max_output_tokens
_ECHOED_EFFORTS = frozenset({"minimal", "low", "medium", "high"})


class ResponsesDialect:
    head_first = True
    stream_headers = ((b"cache-control", b"no-cache"), (b"connection", b"keep-alive"))

    def __init__(
        self, sampling: Sampling, template: PromptTemplate, chat: ChatDialect, model_name: str, disaggregated: bool
    ) -> None:
        self._sampling = sampling
        self._template = template
        self._chat = chat
        self._model_name = model_name
        self._disaggregated = disaggregated

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ResponsesCall:
        request = parse_object(body)
        self._validate(request)
        try:
            chat = responses_as_chat(request, self._template)
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"{error} None") from error
        limit = integer(request, "max_output_tokens")
        choice = effective_tool_choice(request.get("tool_choice"))
        wish = ReplyRequest(
            prompt_key=0,
            max_tokens=0,
            tools=_offered(request) if choice != "none" else (),
            forced=choice == "required",
            named=choice["name"] if isinstance(choice, Mapping) else None,
            tool_results=tool_results(chat["messages"]),
            json_schema=wanted_schema((request.get("text") or {}).get("format")),
        )
        rid = str(request.get("request_id") or f"resp_{uuid.uuid4().hex}")
        jobs = self._sampling.jobs(
            {**request, "rid": rid},
            [self._chat.prompt_ids(chat)],
            samples=1,
            max_tokens=None if limit is None else max(limit - _HEADROOM, 1),
            wish=wish,
        )
        return ResponsesCall(request, jobs)

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        if isinstance(error, BadRequest):
            kind = error.kind if error.kind == "Bad Request" else "invalid_request_error"
            return error.status, _error(error.status, error.message, kind, error.param)
        message = error.message if error.status == 400 else f"{error.status}: {error.message}"
        return 400, _error(400, message, "invalid_request_error")  # the engine turns its own failures into a 400 here

    def _validate(self, request: Mapping[str, Any]) -> None:
        if not isinstance(request.get("input"), str | list):
            raise invalid("missing", ("body", "input"), "Field required")
        check(request, Responses)
        for stateful in ("previous_response_id", "background"):
            if request.get(stateful):
                raise BadRequest(
                    "Response store is disabled. Stateful Responses require --enable-response-store on a standalone server; "
                    "response storage is unavailable in PD mode.",
                    param=stateful,
                )
        model = request.get("model")
        if model is not None and model != self._model_name:
            raise BadRequest(f"The model '{model}' does not exist", status=404, param="model")
        tools = request.get("tools") or []
        choice = effective_tool_choice(request.get("tool_choice"))
        callable_names = {tool.get("name") for tool in tools if tool.get("type") in ("function", "custom")}
        if choice == "required" and not callable_names:
            raise BadRequest(
                'tool_choice="required" requires at least one tool with type="function" or type="custom"; other built-in tool '
                "types cannot be forced."
            )
        if isinstance(choice, Mapping) and choice["name"] not in callable_names:
            raise BadRequest(f"Tool {choice['name']!r} is not declared in tools", param="tool_choice")


class ResponsesCall:
    def __init__(self, request: Mapping[str, Any], jobs: tuple[Job, ...]) -> None:
        self.request = request
        self.jobs = jobs
        self.stream = bool(request.get("stream"))
        self.created = int(time.time())

    def whole(self, last: Sequence[Step]) -> dict[str, Any]:
        step = last[0]
        output: list[dict[str, Any]] = []
        text = spoken_text(step)
        calls = step.job.plan.calls if complete_calls(step) else ()
        if text:
            output.append(message_item(f"msg_{uuid.uuid4().hex}", text, "commentary" if calls else "final_answer"))
        output += [call_item(call) for call in calls]
        return self.response(status_of(step), output, step, error_of(step))

    def events(self) -> ResponsesStream:
        return ResponsesStream(self)

    def response(
        self, status: str, output: Sequence[dict[str, Any]], step: Step | None, error: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """The response object; without a step it has no usage yet."""
        request = self.request
        effort = (request.get("reasoning") or {}).get("effort")
        return {
            "id": self.jobs[0].rid,
            "object": "response",
            "created_at": self.created,
            "model": request.get("model"),
            "output": list(output),
            "status": status,
            "usage": _usage(step) if step is not None else None,
            "parallel_tool_calls": request.get("parallel_tool_calls", True) is not False,
            "tool_choice": effective_tool_choice(request.get("tool_choice")),
            "tools": [_echoed_tool(tool) for tool in request.get("tools") or []],
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.get("instructions"),
            "max_output_tokens": request.get("max_output_tokens"),
            "previous_response_id": None,
            "reasoning": {"effort": effort if effort in _ECHOED_EFFORTS else None, "summary": None},
            "store": request.get("store", True),
            "temperature": _number(request.get("temperature")),
            "text": request.get("text") or self._text_format(output),
            "top_p": _number(request.get("top_p")),
            "truncation": request.get("truncation", "disabled"),
            "user": request.get("user"),
            "metadata": request.get("metadata") or {},
        }

    def _text_format(self, output: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        only_text = bool(output) and all(item["type"] == "message" for item in output)
        return {"format": {"type": "text"}} if only_text else None


def _number(value: Any) -> Any:
    """Sampling parameters come back as the floats that the engine has read them as."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _offered(request: Mapping[str, Any]) -> tuple[OfferedTool, ...]:
    found = []
    for tool in request.get("tools") or []:
        if tool.get("type") == "function" and tool.get("name"):
            found.append(OfferedTool(tool["name"], ToolKind.FUNCTION, tool.get("parameters")))
        elif tool.get("type") == "custom" and tool.get("name"):
            found.append(OfferedTool(tool["name"], ToolKind.CUSTOM))
    return tuple(found)


def _usage(step: Step) -> dict[str, Any]:
    prompt = step.prompt_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": step.cached, "cache_write_tokens": 0},
        "output_tokens": step.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + step.tokens,
    }


def _echoed_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        "type": tool.get("type"),
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": bool(tool.get("strict", False)),
        "tools": tool.get("tools"),
        "defer_loading": tool.get("defer_loading"),
        "format": tool.get("format"),
    }
    return {**known, **{key: value for key, value in tool.items() if key not in known}}


def _error(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
