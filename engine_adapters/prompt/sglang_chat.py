"""Chat messages and tools in the exact shape in which SGLang 0.5.23 hands them to a chat template.

SGLang parses a request into pydantic models and dumps those, so a template sees typed fields only, in the models' order, and
tool JSON has members the client never sent. A prompt that is to hash like the engine's must repeat this (wire:
srt/entrypoints/openai/serving_chat.py `_apply_jinja_template`, protocol.py `Tool`, `Function`, `ChatCompletionMessage*Param`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.template import ContentFormat, PromptTemplate

JsonObject = dict[str, Any]

_MESSAGE_FIELDS = ("role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix")
_FUNCTION_FIELDS = ("description", "name", "parameters", "strict", "defer_loading")
_MEDIA_TYPES = {
    "image_url": "image",
    "input_image": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}


def render_chat(template: PromptTemplate, request: Mapping[str, Any]) -> str:
    """The prompt text of a parsed chat-completions body. Raises ValueError (TemplateRefusal among them) as the engine's 400."""
    messages = template_messages(request["messages"], template.content_format)
    prefix = ""
    if messages and messages[-1].get("role") == "assistant" and isinstance(messages[-1].get("content"), str):
        last = messages.pop()
        if request.get("continue_final_message"):
            prefix = last["content"]
        else:
            messages.append({"role": "user", "content": last["content"]})
    variables = template_variables(request)
    tools = template_tools(request)
    try:
        text = template.render(messages, tools, variables=variables)
    except ValueError:
        flat = [tool.get("function", tool) for tool in tools] if tools else None
        text = template.render(messages, flat, variables=variables)
    return text + prefix


def template_messages(messages: Sequence[Mapping[str, Any]], content_format: ContentFormat) -> list[JsonObject]:
    """Messages as the template gets them: known fields only, no nulls, content flattened where the template wants a string."""
    return [_message(message, content_format) for message in messages]


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
    """`chat_template_kwargs` with what SGLang derives from `reasoning_effort`."""
    variables = dict(request.get("chat_template_kwargs") or {})
    effort = request.get("reasoning_effort")
    reasoning = request.get("reasoning")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        effort = reasoning["effort"]
    if effort is not None:
        variables.setdefault("thinking", effort != "none")
        variables.setdefault("enable_thinking", effort != "none")
        variables.setdefault("reasoning_effort", effort)
    return variables


def _message(message: Mapping[str, Any], content_format: ContentFormat) -> JsonObject:
    role = str(message["role"]).lower()
    if role == "user":
        shaped: JsonObject = {"role": role, "content": message.get("content")}
    else:
        shaped = {field: message.get(field) for field in _MESSAGE_FIELDS if message.get(field) is not None}
        shaped["role"] = role
        if isinstance(shaped.get("tool_calls"), list):
            shaped["tool_calls"] = [_tool_call(call, role) for call in shaped["tool_calls"]]
    content = shaped.get("content")
    if content is None:
        shaped["content"] = ""
    elif isinstance(content, list):
        shaped["content"] = _content(content, content_format, role)
    return {field: shaped[field] for field in _MESSAGE_FIELDS if shaped.get(field) is not None}


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
            shaped.append(dict(part))
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
    return parsed


def _tool(tool: Mapping[str, Any]) -> JsonObject:
    """A tool as dumped: `defer_loading` appears even if no client sent it, as do null descriptions and parameters."""
    defer = tool.get("defer_loading")
    sent = tool["function"]
    function = {field: copy.deepcopy(sent.get(field)) for field in _FUNCTION_FIELDS}
    if function["defer_loading"] is None:
        function["defer_loading"] = defer
    for optional in ("strict", "defer_loading"):
        if function[optional] is None:
            del function[optional]
    ordered = {field: function[field] for field in sent if field in function}
    ordered.update({field: value for field, value in function.items() if field not in ordered})
    return {"type": tool.get("type", "function"), "function": ordered, "defer_loading": defer}
