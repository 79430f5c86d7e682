"""An Anthropic Messages body as the chat request that SGLang 0.5.23 makes of it, so that its prompt comes out the same.

Wire: srt/entrypoints/anthropic/serving.py (`_convert_to_chat_completion_request`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.chat_body import ListName
from engine_adapters.prompt.dialect_body import NotMessageWise
from engine_adapters.prompt.template import PromptTemplate

JsonObject = dict[str, Any]

_SERVER_TOOL = re.compile(r"(web_search|computer|bash|text_editor)_\d{8}$")


class MessagesForm:
    """See `DialectForm`."""

    list_name: ListName = "messages"
    lead_name = "system"
    names = ("tools", "tool_choice", "thinking", "output_config")

    def __init__(self, template: PromptTemplate) -> None:
        self._template = template

    def lead(self, system: Any) -> list[JsonObject]:
        texts = _system_parts(system)
        return [{"role": "system", "content": "\n".join(texts)}] if texts else []

    def joins(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return False

    def converted(self, piece: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
        (message,) = piece
        if message.get("role") == "system" and not self._template.inline_system:
            raise NotMessageWise
        return _message(message)

    def settings(self, members: Mapping[str, Any]) -> JsonObject:
        return {**messages_as_chat({**members, "messages": []}, self._template), "messages": None}

    def whole(self, body: bytes) -> JsonObject:
        return messages_as_chat(msgspec.json.decode(body), self._template)


def messages_as_chat(request: Mapping[str, Any], template: PromptTemplate) -> JsonObject:
    """Members of a chat body that shape the prompt. Raises ValueError as the engine's 400."""
    chat: JsonObject = {"model": request.get("model"), "messages": _messages(request, template)}
    tools = [_tool(tool) for tool in request.get("tools") or [] if not _SERVER_TOOL.match(str(tool.get("type") or ""))]
    if tools:
        chat["tools"] = tools
    chat["tool_choice"] = _tool_choice(request.get("tool_choice"), tools)
    thinking = request.get("thinking")
    if isinstance(thinking, Mapping):
        enabled = thinking.get("type") != "disabled"
        chat["chat_template_kwargs"] = {"thinking": enabled, "enable_thinking": enabled}
    effort = (request.get("output_config") or {}).get("effort")
    if effort is not None:
        chat["chat_template_kwargs"] = {
            **(chat.get("chat_template_kwargs") or {}),
            "reasoning_effort": "max" if effort == "xhigh" else effort,
        }
    return chat


def _messages(request: Mapping[str, Any], template: PromptTemplate) -> list[JsonObject]:
    system = _system_parts(request.get("system"))
    if not template.inline_system:
        for message in request["messages"]:
            if message.get("role") == "system":
                system += [text.strip() for text in _system_parts(message.get("content")) if text.strip()]
    found: list[JsonObject] = [{"role": "system", "content": "\n".join(system)}] if system else []
    for message in request["messages"]:
        if message.get("role") == "system" and not template.inline_system:
            continue
        found += _message(message)
    return found


def _system_parts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content.strip() else []
    return [block["text"] for block in content or [] if block.get("type") == "text" and block.get("text")]


def _message(message: Mapping[str, Any]) -> list[JsonObject]:
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found: list[JsonObject] = []
    parts: list[JsonObject] = []
    calls: list[JsonObject] = []
    for block in content or []:
        kind = block.get("type")
        if kind == "tool_result" and role == "user":
            found += _user(parts)
            parts = []
            found += [
                {"role": "tool", "tool_call_id": block.get("tool_use_id") or block.get("id") or "", "content": result}
                for result in _tool_result(block.get("content"))
            ]
        elif kind == "tool_use":
            function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        else:
            parts += _part(block)
    return found + _rest(role, parts, calls)


def _rest(role: str, parts: list[JsonObject], calls: list[JsonObject]) -> list[JsonObject]:
    message: JsonObject = {"role": role}
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = parts[0]["text"] if _is_text(parts) else parts
    elif not calls:
        if role == "user":
            return []
        message["content"] = ""
    return [message]


def _user(parts: list[JsonObject]) -> list[JsonObject]:
    if not parts:
        return []
    return [{"role": "user", "content": parts[0]["text"] if _is_text(parts) else parts}]


def _part(block: Mapping[str, Any]) -> list[JsonObject]:
    kind = block.get("type")
    if kind == "redacted_thinking":
        raise ValueError("Anthropic redacted_thinking history is not supported")
    if kind == "text" and block.get("text") is not None:
        return [{"type": "text", "text": block["text"]}]
    if kind == "image" and block.get("source"):
        return _image(block["source"])
    if kind == "search_result":
        return [{"type": "text", "text": _search_text(block)}]
    if kind == "tool_result":
        texts = [text for text in _tool_result(block.get("content")) if isinstance(text, str)]
        return [{"type": "text", "text": f"Tool result: {' '.join(texts)}"}]
    return []


def _tool_result(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [str(content) if content else ""]
    parts: list[JsonObject] = []
    for item in content:
        if item.get("type") == "text" and item.get("text"):
            parts.append({"type": "text", "text": item["text"]})
        elif item.get("type") == "image":
            parts += _image(item.get("source"))
        elif item.get("type") == "search_result":
            parts.append({"type": "text", "text": _search_text(item)})
    if not parts:
        return [""]
    return [parts[0]["text"] if _is_text(parts) else parts]


def _image(source: Any) -> list[JsonObject]:
    if not isinstance(source, Mapping):
        return []
    if source.get("type") == "base64" and source.get("data"):
        url = f"data:{source.get('media_type', 'image/png')};base64,{source['data']}"
    else:
        url = source.get("url") or ""
    return [{"type": "image_url", "image_url": {"url": url}}] if url else []


def _search_text(block: Mapping[str, Any]) -> str:
    lines = [f"Title: {block['title']}"] if block.get("title") else []
    source = block.get("source")
    if isinstance(source, Mapping):
        source = source.get("url") or source.get("text")
    if source:
        lines.append(f"Source: {source}")
    content = block.get("content")
    texts = (
        [content] if isinstance(content, str) else [part.get("text") for part in content or [] if part.get("type") == "text"]
    )
    if any(texts):
        lines.append("Content: " + "\n".join(text for text in texts if text))
    return "\n".join(lines)


def _tool(tool: Mapping[str, Any]) -> JsonObject:
    schema = dict(tool.get("input_schema") or {})
    schema.setdefault("type", "object")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": schema,
        "strict": bool(tool.get("strict", False)),
    }
    return {"type": "function", "function": function, "defer_loading": tool.get("defer_loading")}


def _tool_choice(choice: Any, tools: Sequence[JsonObject]) -> Any:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if not tools:
        if kind in ("any", "tool"):
            raise ValueError(f"tool_choice={kind!r} requires at least one custom tool")
        return "none"
    if kind == "tool":
        name = choice.get("name")
        if all(tool["function"]["name"] != name for tool in tools):
            raise ValueError(f"tool_choice references tool {name!r} but it is not in the forwarded tools list")
        return {"type": "function", "function": {"name": name}}
    return {"any": "required", "none": "none"}.get(kind or "", "auto")


def _is_text(parts: Sequence[JsonObject]) -> bool:
    return len(parts) == 1 and parts[0]["type"] == "text"
