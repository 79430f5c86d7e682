"""A Responses body as the chat request that SGLang 0.5.23 makes of it, so that its prompt comes out the same.

Wire: srt/entrypoints/openai/serving_responses.py (`_construct_input_messages`, `_response_tools_to_chat_tools`) and
responses_adapters.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.chat_body import ListName
from engine_adapters.prompt.dialect_body import NotMessageWise
from engine_adapters.prompt.template import PromptTemplate

JsonObject = dict[str, Any]

_DEVELOPER_LABEL = "Developer instructions:"
_ASSISTANTS = frozenset({"function_call", "custom_tool_call", "reasoning"})
_UNSENT = frozenset({"id", "status", "type"})


class ResponsesForm:
    """See `DialectForm`. The assistant's items that follow one another are one piece."""

    list_name: ListName = "input"
    lead_name = "instructions"
    names = ("tools", "tool_choice", "reasoning", "chat_template_kwargs")

    def __init__(self, template: PromptTemplate) -> None:
        self._template = template

    def lead(self, system: Any) -> list[JsonObject]:
        return [{"role": "system", "content": system}] if system else []

    def joins(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return is_assistants(before) and is_assistants(after)

    def converted(self, piece: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
        found = [message for item in piece if (message := _message(item)) is not None]
        if not self._template.inline_system and any(message.get("role") == "system" for message in found):
            raise NotMessageWise
        return _merge_assistants(found)

    def settings(self, members: Mapping[str, Any]) -> JsonObject:
        return {**responses_as_chat({**members, "input": []}, self._template), "messages": None}

    def whole(self, body: bytes) -> JsonObject:
        return responses_as_chat(msgspec.json.decode(body), self._template)


def is_assistants(item: Mapping[str, Any]) -> bool:
    """Whether an item is a part of what the assistant said."""
    return item.get("type") in _ASSISTANTS or item.get("role") == "assistant"


def responses_as_chat(request: Mapping[str, Any], template: PromptTemplate) -> JsonObject:
    """Members of a chat body that shape the prompt. Raises ValueError as the engine's 400 for items it cannot take."""
    tools = chat_tools(request.get("tools") or [])
    chat: JsonObject = {
        "model": request.get("model"),
        "messages": _messages(request, template),
        "tools": tools or None,
        "tool_choice": _chat_tool_choice(effective_tool_choice(request.get("tool_choice"))) if tools else "none",
        "chat_template_kwargs": request.get("chat_template_kwargs"),
    }
    reasoning = request.get("reasoning")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Function tools as they are, custom ones as a function of one string; built-in tools are left out."""
    found: list[JsonObject] = []
    for tool in tools:
        kind, name = tool.get("type"), tool.get("name")
        if kind == "function":
            description, parameters = tool.get("description"), tool.get("parameters")
        elif kind == "custom" and name:
            description, parameters = _custom_description(tool), _custom_parameters()
        else:
            continue
        function = {
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": bool(tool.get("strict", False)),
        }
        found.append({"type": "function", "function": function})
    return found


def effective_tool_choice(choice: Any) -> Any:
    """What the engine can honour of `tool_choice`: a word, or a named function or custom tool."""
    if not isinstance(choice, Mapping):
        return choice or "auto"
    name = choice.get("name") or (choice.get("function") or {}).get("name")
    if choice.get("type") in ("function", "custom") and name:
        return {"type": choice["type"], "name": name}
    return "auto"


def _chat_tool_choice(choice: Any) -> Any:
    return {"type": "function", "function": {"name": choice["name"]}} if isinstance(choice, Mapping) else choice


def _messages(request: Mapping[str, Any], template: PromptTemplate) -> list[JsonObject]:
    found: list[JsonObject] = []
    if request.get("instructions"):
        found.append({"role": "system", "content": request["instructions"]})
    items = request["input"]
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        message = _message(item)
        if message is not None:
            found.append(message)
    merged = _merge_assistants(found)
    return merged if template.inline_system else _lead_with_system(merged)


def _message(item: Mapping[str, Any]) -> JsonObject | None:
    kind = item.get("type")
    if kind == "function_call":
        return _call(item, _object_text(item.get("arguments")))
    if kind == "custom_tool_call":
        return _call(item, json.dumps({"input": item.get("input") or ""}, ensure_ascii=False))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _flat(item.get("output", ""))}
    if kind == "reasoning":
        text = "\n".join(_texts(item.get("summary")) or _texts(item.get("content")))
        return {"role": "assistant", "reasoning_content": text} if text else None
    if kind not in (None, "message"):
        raise ValueError(f"Unsupported Responses API input item type: {kind!r}")
    message = {key: value for key, value in item.items() if value is not None and key not in _UNSENT}
    if message.get("role") == "developer":
        message = {**message, "role": "system", "content": _labelled(message.get("content"))}
    if isinstance(message.get("content"), list):
        message["content"] = [_part(part) for part in message["content"]]
    return message


def _call(item: Mapping[str, Any], arguments: str) -> JsonObject:
    function = {"name": item.get("name"), "arguments": arguments}
    call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def _object_text(arguments: Any) -> str:
    """Arguments as JSON text of an object; anything else was cut off and counts as empty."""
    if isinstance(arguments, Mapping):
        return msgspec.json.encode(arguments).decode()
    if not isinstance(arguments, str) or not arguments:
        return "{}"
    try:
        parsed = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return "{}"
    return arguments if isinstance(parsed, dict) else "{}"


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") == "input_image":
        image = part.get("image_url")
        return {"type": "image_url", "image_url": image if isinstance(image, Mapping) else {"url": image}}
    return part


def _flat(output: Any) -> Any:
    if isinstance(output, list):
        return "".join(part.get("text", "") for part in output if isinstance(part, Mapping))
    return output


def _texts(parts: Any) -> list[str]:
    return [part["text"] for part in parts or [] if isinstance(part, Mapping) and part.get("text")]


def _labelled(content: Any) -> Any:
    """A developer message becomes a system message that says where it came from."""
    if isinstance(content, str):
        return f"{_DEVELOPER_LABEL}\n{content}"
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return [*content[:index], {**part, "text": f"{_DEVELOPER_LABEL}\n{part['text']}"}, *content[index + 1 :]]
    return [{"type": "input_text", "text": _DEVELOPER_LABEL}, *content]


def _merge_assistants(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """One assistant turn comes as several items; the template must see one message."""
    merged: list[JsonObject] = []
    for message in messages:
        before = merged[-1] if merged else {}
        same_turn = before.get("phase") == message.get("phase") or set(before) == {"role", "reasoning_content"}
        if message.get("role") == "assistant" and before.get("role") == "assistant" and same_turn:
            merged[-1] = _merged(before, message)
        else:
            merged.append(message)
    return merged


def _merged(before: JsonObject, message: JsonObject) -> JsonObject:
    joined = dict(before)
    if message.get("phase") is not None:
        joined["phase"] = message["phase"]
    new, old = message.get("content"), before.get("content")
    if new not in (None, ""):
        if old in (None, ""):
            joined["content"] = new
        elif isinstance(old, str) and isinstance(new, str):
            joined["content"] = f"{old}\n\n{new}"
        else:
            joined["content"] = [*_as_parts(old), *_as_parts(new)]
    if message.get("tool_calls"):
        joined["tool_calls"] = [*(before.get("tool_calls") or []), *message["tool_calls"]]
    reasoning = message.get("reasoning_content")
    if reasoning:
        earlier = before.get("reasoning_content")
        joined["reasoning_content"] = f"{earlier}\n{reasoning}" if earlier else reasoning
    return joined


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _lead_with_system(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """For templates that know only one leading system message."""
    chunks: list[str] = []
    others = []
    for message in messages:
        if message.get("role") != "system":
            others.append(message)
        elif isinstance(message.get("content"), str):
            chunks.append(message["content"])
        else:
            chunks += _texts(message.get("content"))
    return [{"role": "system", "content": "\n\n".join(chunks)}, *others] if chunks else others


def _custom_parameters() -> JsonObject:
    payload = {"type": "string", "description": "The freeform text payload for this tool."}
    return {"type": "object", "properties": {"input": payload}, "required": ["input"], "additionalProperties": False}


def _custom_description(tool: Mapping[str, Any]) -> str | None:
    parts = [tool["description"]] if tool.get("description") else []
    form = tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        syntax, definition = form.get("syntax") or "lark", form.get("definition") or ""
        parts.append(f"The payload must conform to this {syntax} grammar:\n{definition}")
    return "\n\n".join(parts) or None
