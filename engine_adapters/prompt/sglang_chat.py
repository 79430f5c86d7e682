"""Chat messages and tools in the exact shape in which SGLang 0.5.23 hands them to a chat template.

SGLang parses a request into pydantic models and dumps those, so a template sees typed fields only, in the models' order, and
tool JSON has members the client never sent. A prompt that is to hash like the engine's must repeat this (wire:
srt/entrypoints/openai/serving_chat.py `_apply_jinja_template`, protocol.py `Tool`, `Function`, `ChatCompletionMessage*Param`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.kimi_tokenizer import LongTexts
from engine_adapters.prompt.profile import Closing, Settings
from engine_adapters.prompt.sglang_schema import normalized_types
from engine_adapters.prompt.template import ContentFormat, PromptTemplate, TemplateRefusal

JsonObject = dict[str, Any]

_MESSAGE_FIELDS = ("role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix")
_FUNCTION_FIELDS = ("description", "name", "parameters", "strict", "defer_loading")
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"})
_YES = frozenset({"1", "true", "yes", "y", "on"})
_MEDIA_TYPES = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
_INTEGERS = range(-(1 << 63), 1 << 64)
_LONG_NUMBER = re.compile(r"\d{19}")


class SglangProfile:
    """See `PromptProfile`."""

    name = "sglang 0.5.23"
    long_texts = LongTexts.WHOLE

    def content_format(self, template: PromptTemplate) -> ContentFormat:
        return template.content_format

    def message(self, message: Mapping[str, Any], content_format: ContentFormat) -> JsonObject:
        return template_message(message, content_format)

    def settings(self, body: Mapping[str, Any]) -> Settings:
        return Settings(
            template_tools(body), template_variables(body), continue_final_message=bool(body.get("continue_final_message"))
        )

    def closing(self, last: JsonObject, settings: Settings) -> Closing:
        """An answer at the end is continued, its ids appended to the prompt's; or it is taken for the user's."""
        if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            return Closing(last)
        if settings.continue_final_message:
            return Closing(None, last["content"])
        return Closing({"role": "user", "content": last["content"]})

    def rearranges(self, message: JsonObject, template: PromptTemplate) -> bool:
        return False

    def rearranged(self, messages: Sequence[JsonObject]) -> list[JsonObject]:
        return list(messages)

    def flat_tools(self, tools: Sequence[JsonObject]) -> list[JsonObject] | None:
        return [tool.get("function", tool) for tool in tools]


def render_chat(template: PromptTemplate, request: Mapping[str, Any]) -> str:
    """The prompt text of a parsed chat-completions body. Raises ValueError (TemplateRefusal among them) as the engine's 400."""
    profile = SglangProfile()
    settings = profile.settings(request)
    messages = template_messages(request["messages"], template.content_format)
    closing = profile.closing(messages.pop(), settings) if messages else Closing(None)
    if closing.last is not None:
        messages.append(closing.last)
    try:
        text = template.render(messages, settings.tools, variables=settings.variables)
    except ValueError:
        flat = profile.flat_tools(settings.tools) if settings.tools else None
        text = template.render(messages, flat, variables=settings.variables)
    return text + closing.appended


def template_messages(messages: Sequence[Mapping[str, Any]], content_format: ContentFormat) -> list[JsonObject]:
    """Messages as the template gets them: known fields only, no nulls, content flattened where the template wants a string."""
    return [template_message(message, content_format) for message in messages]


def template_tools(request: Mapping[str, Any]) -> list[JsonObject] | None:
    """The request's tools as rendered; None where there are none or `tool_choice` is "none". A named choice leaves that one."""
    tools = request.get("tools")
    choice = request.get("tool_choice")
    if not tools or choice == "none":
        return None
    if isinstance(choice, Mapping):
        wanted = (choice.get("function") or {}).get("name")
        return [_tool(tool) for tool in tools if tool["function"].get("name") == wanted] or None
    return [_tool(tool) for tool in tools]


def template_variables(request: Mapping[str, Any]) -> JsonObject:
    """`chat_template_kwargs` with what SGLang derives from `reasoning` and `reasoning_effort`."""
    variables = dict(request.get("chat_template_kwargs") or {})
    if "chat_template" in variables:
        raise TemplateRefusal("Request-supplied chat_template is not allowed.")
    reasoning = request.get("reasoning")
    effort, thinking = request.get("reasoning_effort"), None
    if isinstance(reasoning, Mapping):
        asked = reasoning.get("effort") if reasoning.get("effort") is not None else reasoning.get("reasoning_effort")
        effort = effort if asked is None else _effort(asked)
        enabled = reasoning.get("enabled") if reasoning.get("enabled") is not None else reasoning.get("enable", False)
        if enabled.strip().lower() in _YES if isinstance(enabled, str) else enabled:
            thinking = True
    if effort is not None:
        thinking = effort != "none"
    if thinking is not None:
        variables.setdefault("thinking", thinking)
        variables.setdefault("enable_thinking", thinking)
    own = variables.pop("reasoning_effort", None)
    if own is not None or effort is not None:
        variables["reasoning_effort"] = _effort(effort if own is None else own)
    return variables


def template_message(message: Mapping[str, Any], content_format: ContentFormat) -> JsonObject:
    """One message as the template gets it. Of a user's only the content counts."""
    role = str(message["role"]).lower() if message["role"] != "user" else "user"
    if role == "user":
        shaped: JsonObject = {"role": role, "content": message.get("content")}
    else:
        shaped = {field: message.get(field) for field in _MESSAGE_FIELDS if message.get(field) is not None}
        shaped["role"] = role
        if isinstance(shaped.get("tool_calls"), list):
            shaped["tool_calls"] = [_tool_call(call, role) for call in shaped["tool_calls"]]
        if shaped.get("tools"):
            shaped["tools"] = [_tool(tool) for tool in shaped["tools"]]
    content = shaped.get("content")
    ordered = {field: shaped[field] for field in _MESSAGE_FIELDS if shaped.get(field) is not None}
    if content is None:
        ordered = {"role": role, "content": "", **ordered}
    elif isinstance(content, list):
        if content_format == "openai":
            del ordered["content"]  # and put back last
        ordered["content"] = _content(content, content_format, role)
    return ordered


def _content(parts: Sequence[Any], content_format: ContentFormat, role: str) -> str | list[JsonObject]:
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and part.get("type") in ("text", "input_text")]
    if content_format == "string":
        return " ".join(texts)
    shaped: list[JsonObject] = []
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type")
        if kind in ("text", "input_text"):
            shaped.append({"type": "text", "text": part["text"]})
        elif kind in _MEDIA_TYPES:
            shaped.append({"type": _MEDIA_TYPES[kind]})
        elif kind == "tool_reference":
            shaped.append({"type": kind, "name": part.get("name")})
    if role == "tool" and len(texts) == len(shaped):
        return " ".join(texts)
    return shaped


def _tool_call(call: Mapping[str, Any], role: str) -> JsonObject:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if role == "assistant" and isinstance(arguments, str):
        arguments = _arguments(arguments)
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _arguments(text: str) -> JsonObject:
    try:
        parsed = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError("Assistant tool call function.arguments must be valid JSON.") from error
    if not isinstance(parsed, dict):
        raise ValueError("Assistant tool call function.arguments must be a JSON object.")  # noqa: TRY004  # engine's 400
    return _as_floats(parsed) if _LONG_NUMBER.search(text) else parsed


def _as_floats(value: Any) -> Any:
    """Integers beyond 64 bits become floats, as orjson reads them."""
    if isinstance(value, dict):
        return {key: _as_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_floats(item) for item in value]
    return float(value) if type(value) is int and value not in _INTEGERS else value


def _effort(value: Any) -> Any:
    """A word, or a number between 0 and 1 that may be written as text."""
    if value in _EFFORTS:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"invalid reasoning effort: {value!r}") from error


def _tool(tool: Mapping[str, Any]) -> JsonObject:
    """A tool as dumped: `defer_loading` appears even if no client sent it, as do null descriptions and parameters."""
    defer = tool.get("defer_loading")
    sent = tool["function"]
    function = {field: copy.deepcopy(sent.get(field)) for field in _FUNCTION_FIELDS}
    if function["parameters"] is not None:
        function["parameters"] = normalized_types(function["parameters"])
    if function["defer_loading"] is None:
        function["defer_loading"] = defer
    for optional in ("strict", "defer_loading"):
        if function[optional] is None:
            del function[optional]
    ordered = {field: function[field] for field in sent if field in function}
    ordered.update({field: value for field, value in function.items() if field not in ordered})
    return {"type": tool.get("type", "function"), "function": ordered, "defer_loading": defer}
