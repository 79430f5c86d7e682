"""`/v1/chat/completions` as SGLang 0.5.23 speaks it (wire: openai/serving_chat.py, protocol.py, sse_utils.py)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.reply.plan import CALL_MARKER, SUBMIT_MARK, ReplyRequest
from engine_adapters.emulator.reply.tools import OfferedTool, ToolKind
from engine_adapters.emulator.wire.chat_stream import ChatStream
from engine_adapters.emulator.wire.errors import BadRequest, invalid, openai_refusal, parse_object
from engine_adapters.emulator.wire.known_pieces import KnownPieces
from engine_adapters.emulator.wire.logprobs import chat_logprobs
from engine_adapters.emulator.wire.sampling import Sampling, integer, wanted_schema, with_overrides
from engine_adapters.emulator.wire.shapes import Chat, check
from engine_adapters.emulator.wire.usage import cached_details, metadata, usage
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step
from engine_adapters.emulator.worker.options import ENGINE_NAME
from engine_adapters.prompt.sglang_chat import render_chat
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer


class ChatDialect:
    head_first = False
    stream_headers = ()

    def __init__(self, sampling: Sampling, template: PromptTemplate, tokenizer: Tokenizer, cache_report: bool) -> None:
        self._sampling = sampling
        self._template = template
        self._tokenizer = tokenizer
        self._pieces = KnownPieces(tokenizer)
        self._cache_report = cache_report

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ChatCall:
        return self.call(with_overrides(parse_object(body), headers))

    def call(self, request: dict[str, Any]) -> ChatCall:
        """A chat call from an already parsed body."""
        _validate(request)
        tools = offered_tools(request)
        limit = integer(request, "max_completion_tokens") or integer(request, "max_tokens")
        if limit is not None and limit > self._sampling.context_tokens:
            raise BadRequest(
                f"max_completion_tokens is too large: {limit}.This model supports at most {self._sampling.context_tokens} "
                "completion tokens."
            )
        samples = integer(request, "n", 1) or 1
        wish = ReplyRequest(
            prompt_key=0,
            max_tokens=0,
            tools=tools,
            forced=request.get("tool_choice") == "required",
            named=_named_tool(request),
            tool_results=tool_results(request["messages"]),
            submits=SUBMIT_MARK in msgspec.json.encode(request["messages"]).decode(),
            json_schema=wanted_schema(request.get("response_format")),
            ignore_eos=bool(request.get("ignore_eos")),
        )
        jobs = self._sampling.jobs(request, [self.prompt_ids(request)], samples=samples, max_tokens=limit, wish=wish)
        return ChatCall(request, jobs, bool(tools), self._tokenizer, self._cache_report)

    def prompt_ids(self, request: Mapping[str, Any]) -> tuple[int, ...]:
        """Token ids of the rendered prompt, or the ones the client brought."""
        if request.get("input_ids") is not None:
            return tuple(request["input_ids"])
        try:
            text = render_chat(self._template, request)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # whatever shape a member has
            raise BadRequest(str(error), "BadRequest") from error
        return self._pieces.encode_prompt(text)

    def refusal(self, error: BadRequest | Failure) -> tuple[int, dict[str, Any]]:
        return error.status, openai_refusal(error)


class ChatCall:
    """A chat request and how its reply is worded."""

    def __init__(
        self, request: Mapping[str, Any], jobs: tuple[Job, ...], parses_tools: bool, tokenizer: Tokenizer, cache_report: bool
    ) -> None:
        self.request = request
        self.jobs = jobs
        self.parses_tools = parses_tools
        self.tokenizer = tokenizer
        self.cache_report = cache_report
        self.stream = bool(request.get("stream"))
        self.created = int(time.time())
        self.model = str(request.get("model") or "default")
        self.top_logprobs = int(request.get("top_logprobs") or 0)

    def whole(self, last: Sequence[Step]) -> dict[str, Any]:
        reply = {
            "id": self.jobs[0].rid,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(step) for step in last],
            "usage": usage(last, self.cache_report),
            "metadata": metadata(last[0], ENGINE_NAME),
        }
        details = cached_details(last) if self.request.get("return_cached_tokens_details") else None
        return {**reply, "sglext": details} if details else reply

    def events(self) -> ChatStream:
        return ChatStream(
            chat_id=self.jobs[0].rid,
            created=self.created,
            model=self.model,
            parses_tools=self.parses_tools,
            logprobs=self._logprobs,
            options=self.request.get("stream_options") or {},
            cache_report=self.cache_report,
            cache_details=bool(self.request.get("return_cached_tokens_details")),
        )

    def _choice(self, step: Step) -> dict[str, Any]:
        finish = step.finish
        reason = finish.reason if finish else "stop"
        matched = finish.matched if finish else None
        message: dict[str, Any] = {"role": "assistant", "content": spoken_text(step), "reasoning_content": None}
        if complete_calls(step):
            message["tool_calls"] = [_tool_call(index, call) for index, call in enumerate(step.job.plan.calls)]
            if reason == "stop":
                reason, matched = "tool_calls", None
        return {
            "index": step.job.index,
            "message": message,
            "logprobs": self._logprobs(step, 0),
            "finish_reason": reason,
            "matched_stop": matched,
        }

    def _logprobs(self, step: Step, start: int) -> dict[str, Any] | None:
        if not self.request.get("logprobs"):
            return None
        return chat_logprobs(self.tokenizer, step.job.plan.token_ids[start : step.tokens], self.top_logprobs)


def spoken_text(step: Step) -> str:
    """The reply's content: what stands before a tool call; a call is one as soon as its marker is complete."""
    plan, text = step.job.plan, step.text
    return text[: plan.call_at] if plan.calls and len(text) >= plan.call_at + len(CALL_MARKER) else text


def complete_calls(step: Step) -> bool:
    """Whether the step's text holds a whole tool call; an unfinished one is dropped by SGLang's parser."""
    return bool(step.job.plan.calls) and step.job.plan.ends and step.tokens == len(step.job.plan.token_ids)


def offered_tools(request: Mapping[str, Any]) -> tuple[OfferedTool, ...]:
    if request.get("tool_choice") == "none":
        return ()
    return tuple(
        OfferedTool(tool["function"]["name"], ToolKind.FUNCTION, tool["function"].get("parameters"))
        for tool in request.get("tools") or ()
    )


def tool_results(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many tool messages follow the last one of the user."""
    count = 0
    for message in reversed(messages):
        role = message.get("role")
        if role == "user":
            break
        count += role == "tool"
    return count


def _named_tool(request: Mapping[str, Any]) -> str | None:
    choice = request.get("tool_choice")
    return choice["function"]["name"] if isinstance(choice, Mapping) else None


def _tool_call(index: int, call: Any) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "index": index,
        "type": "function",
        "function": {"name": call.tool.name, "arguments": call.arguments},
    }


_MEDIA_TYPES = frozenset({"image_url", "video_url", "audio_url"})
_ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root", "user")


def _validate(request: Mapping[str, Any]) -> None:
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise invalid("missing", ("body", "messages"), "Field required")
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    check(request, Chat)
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or str(message.get("role", "")).lower() not in _ROLES:
            raise invalid("value_error", ("body", "messages", position, "role"), f"Value error, 'role' must be one of {_ROLES}")
        _refuse_media(message)
    _validate_tools(request)


def _refuse_media(message: Mapping[str, Any]) -> None:
    for part in message["content"] if isinstance(message.get("content"), list) else ():
        if isinstance(part, Mapping) and part.get("type") in _MEDIA_TYPES:
            raise BadRequest(f"Model only supports text input; received unsupported content type '{part['type']}'.")


def _validate_tools(request: Mapping[str, Any]) -> None:
    tools = request.get("tools") or []
    for position, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not isinstance((tool.get("function") or {}).get("name"), str):
            raise invalid("missing", ("body", "tools", position, "function"), "Field required")
    choice = request.get("tool_choice")
    if choice == "required" and not tools:
        raise BadRequest("Tools cannot be empty if tool choice is set to required.")
    if isinstance(choice, Mapping):
        if not tools:
            raise BadRequest("Tools cannot be empty if tool choice is set to a specific tool.")
        name = (choice.get("function") or {}).get("name")
        if all(tool["function"]["name"] != name for tool in tools):
            raise BadRequest(f"Tool '{name}' not found in tools list.")
    elif choice not in (None, "auto", "none", "required"):
        raise invalid("literal_error", ("body", "tool_choice"), "Input should be 'auto', 'required' or 'none'", choice)
