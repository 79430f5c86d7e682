"""An Anthropic Messages body as the chat request that vLLM 0.32 makes of it, so that its prompt comes out the same.

Wire: entrypoints/anthropic/serving.py (`to_chat_completion_request`). SGLang's conversion is another one (`sglang_messages`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from engine_adapters.prompt.chat_body import ListName
from engine_adapters.prompt.dialect_body import NotMessageWise
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal

JsonObject = dict[str, Any]

_BILLING_HEADER = "x-anthropic-billing-header"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesForm:
    """See `DialectForm`."""

    list_name: ListName = "messages"
    lead_name = "system"
    names = ("tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs")

    def __init__(self, template: PromptTemplate) -> None:
        self._template = template

    def lead(self, system: Any) -> list[JsonObject]:
        texts = _system_texts(system)
        return [{"role": "system", "content": "".join(texts)}] if texts else []

    def joins(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return False

    def converted(self, piece: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
        (message,) = piece
        if message["role"] != "system":
            return _message(message)
        if _wants_system_first(self._template):
            raise NotMessageWise
        text = _system_text(message)
        return [{"role": "system", "content": text}] if text else []

    def settings(self, members: Mapping[str, Any]) -> JsonObject:
        return {**messages_as_chat({**members, "messages": []}, self._template), "messages": None}

    def whole(self, body: bytes) -> JsonObject:
        return messages_as_chat(msgspec.json.decode(body), self._template)


def messages_as_chat(request: Mapping[str, Any], template: PromptTemplate) -> JsonObject:
    """Members of a chat body that shape the prompt. Raises ValueError for what is not derivable."""
    chat: JsonObject = {"model": request.get("model"), "messages": _messages(request, template)}
    for name in ("chat_template_kwargs", "cache_salt"):
        if request.get(name) is not None:
            chat[name] = request[name]
    effort = _effort(request, template)
    if effort is not None:
        chat["reasoning_effort"] = effort
    tools = request.get("tools")
    if tools:
        chat["tools"] = [_tool(tool) for tool in tools]
        chat["tool_choice"] = _tool_choice(request.get("tool_choice"))
    return chat


def _effort(request: Mapping[str, Any], template: PromptTemplate) -> str | None:
    thinking = request.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "disabled":
        return _disabled_effort(template)
    return (request.get("output_config") or {}).get("effort")


@lru_cache(maxsize=16)
def _disabled_effort(template: PromptTemplate) -> str:
    """What switches thinking off: `low` where the template refuses `none` or takes it for some effort."""
    none = _probe(template, "none")
    return "low" if none is None or any(_probe(template, effort) == none for effort in _EFFORTS) else "none"


def _probe(template: PromptTemplate, effort: str) -> str | None:
    try:
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return template.render([{"role": "user", "content": "Hi"}], variables=variables)
    except TemplateRefusal:
        return None


def _messages(request: Mapping[str, Any], template: PromptTemplate) -> list[JsonObject]:
    merges = _wants_system_first(template)
    system = _system_texts(request.get("system"))
    if merges:
        system += [text for message in request["messages"] if message["role"] == "system" and (text := _system_text(message))]
    found: list[JsonObject] = [{"role": "system", "content": "".join(system)}] if system else []
    for message in request["messages"]:
        if message["role"] != "system":
            found += _message(message)
        elif not merges and (text := _system_text(message)):
            found.append({"role": "system", "content": text})
    return found


@lru_cache(maxsize=16)
def _wants_system_first(template: PromptTemplate) -> bool:
    """Whether the template refuses a system message in mid-conversation."""
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        template.render(turns, add_generation_prompt=False)
    except TemplateRefusal:
        return True
    return False


def _system_texts(content: Any) -> list[str]:
    """The request's own system prompt, without Claude Code's line that changes on every request."""
    if isinstance(content, str):
        return [content] if content else []
    return [block["text"] for block in content or [] if _is_kept(block)]


def _system_text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return "" if content.startswith(_BILLING_HEADER) else content
    if any(block["type"] in ("tool_addition", "tool_removal") for block in content):
        raise ValueError("tools that change within the conversation have no derivable prompt")
    return "".join(block["text"] for block in content if _is_kept(block))


def _is_kept(block: Mapping[str, Any]) -> bool:
    return block["type"] == "text" and bool(block.get("text")) and not block["text"].startswith(_BILLING_HEADER)


def _message(message: Mapping[str, Any]) -> list[JsonObject]:
    """What stands before it (tool results), and the message itself unless nothing is left of it."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    before: list[JsonObject] = []
    parts: list[JsonObject] = []
    shaped: JsonObject = {"role": role}
    thoughts = [block["thinking"] for block in content if block["type"] == "thinking" and block.get("thinking") is not None]
    if thoughts:
        shaped["reasoning"] = "".join(thoughts)
    for block in content:
        kind = block["type"]
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            raise ValueError("images have no derivable prompt")
        elif kind == "tool_use":
            shaped.setdefault("tool_calls", []).append(_call(block))
        elif kind == "tool_result" and role == "user":
            before += _results(block)
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
    if parts:
        shaped["content"] = parts[0]["text"] if len(parts) == 1 else parts
    return before if role == "user" and not parts else [*before, shaped]


def _call(block: Mapping[str, Any]) -> JsonObject:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id") or "call", "type": "function", "function": function}


def _results(block: Mapping[str, Any]) -> list[JsonObject]:
    content, named = block.get("content"), {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    if not isinstance(content, list):
        return [{**named, "content": content or ""}]
    if any(item.get("type") == "image" for item in content):
        raise ValueError("images have no derivable prompt")
    found = [{**named, "content": "\n".join(item.get("text", "") for item in content if item.get("type") == "text")}]
    names = [item.get("tool_name") or item.get("name") for item in content if item.get("type") == "tool_reference"]
    references = [{"type": "tool_reference", "name": name} for name in names if name]
    return [*found, {**named, "content": references}] if references else found


def _tool(tool: Mapping[str, Any]) -> JsonObject:
    if not isinstance(tool.get("input_schema"), Mapping):
        raise ValueError(f"tool {tool.get('name')!r} has no input_schema, which vLLM demands")  # noqa: TRY004  a 400
    schema = dict(tool["input_schema"])
    schema.setdefault("type", "object")
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": schema}
    for name in ("strict", "defer_loading"):
        function[name] = tool.get(name)
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return "auto"
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _TOOL_CHOICES.get(str(kind), "auto")
