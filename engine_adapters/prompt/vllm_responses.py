"""A Responses body as the chat that vLLM 0.32 renders of it, so that its prompt comes out the same.

Wire: renderers/online_renderer.py (`render_responses`), entrypoints/openai/responses/utils.py (`construct_input_messages`),
tool_parsers/utils.py (`get_function_tools`). SGLang's conversion is another one (`sglang_responses`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine_adapters.prompt.chat_body import ListName
from engine_adapters.prompt.dialect_body import NotMessageWise
from engine_adapters.prompt.sglang_responses import is_assistants
from engine_adapters.prompt.template import PromptTemplate

JsonObject = dict[str, Any]

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_NAMESPACE_SEPARATOR = "__"
_UNFINISHED = ("in_progress", "incomplete")


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
        if _goes_on(piece[-1]):
            raise NotMessageWise
        said: list[JsonObject] = []
        for item in piece:
            _take(item, said)
        return said

    def settings(self, members: Mapping[str, Any]) -> JsonObject:
        return {**responses_as_chat({**members, "input": []}, self._template), "messages": None}

    def whole(self, body: bytes) -> JsonObject:
        return responses_as_chat(msgspec.json.decode(body), self._template)


def responses_as_chat(request: Mapping[str, Any], template: PromptTemplate) -> JsonObject:
    """Members of a chat body that shape the prompt. Raises ValueError for items whose prompt is not known."""
    del template  # what it wants matters to SGLang's conversion alone
    chat: JsonObject = {"model": request.get("model"), "messages": _messages(request)}
    tools = [_chat_tool(tool) for tool in _function_tools(request.get("tools") or [])]
    if tools:
        chat["tools"] = tools
    if request.get("chat_template_kwargs") is not None:
        chat["chat_template_kwargs"] = request["chat_template_kwargs"]
    effort = (request.get("reasoning") or {}).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    return chat


def _messages(request: Mapping[str, Any]) -> list[JsonObject]:
    found: list[JsonObject] = []
    if request.get("instructions"):
        found.append({"role": "system", "content": request["instructions"]})
    items = request["input"]
    if isinstance(items, str):
        return [*found, {"role": "user", "content": items}]
    if items and _goes_on(items[-1]):
        raise ValueError("a last item that is to be continued has no derivable prompt")
    said: list[JsonObject] = []
    for item in items:
        _take(item, said)
    return found + said


def _goes_on(item: Mapping[str, Any]) -> bool:
    """Whether the model is to go on with this item, if it is the last one."""
    return item.get("status") in _UNFINISHED and item.get("type", "message") in ("message", "reasoning")


def _take(item: Mapping[str, Any], said: list[JsonObject]) -> None:
    """Adds the item's message, or what it has to the assistant's message before it."""
    kind = item.get("type")
    last = said[-1] if said and said[-1].get("role") == "assistant" else None
    if kind in _CALLS:
        _join_call(_call(item), last, said)
    elif kind == "reasoning":
        _join("reasoning", _reasoning(item), last, said)
    elif kind in _OUTPUTS:
        said.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
    elif item.get("role") == "assistant" and (text := _assistant_text(item.get("content"))) is not None:
        _join("content", text, last, said)
    elif "role" in item:
        said.append({name: value for name, value in item.items() if name != "type"})
    else:
        raise ValueError(f"an input item of type {kind!r} has no derivable prompt")


def _join(name: str, value: str, last: JsonObject | None, said: list[JsonObject]) -> None:
    if last is not None and last.get(name) is None:
        last[name] = value
    else:
        said.append({"role": "assistant", name: value})


def _join_call(call: JsonObject, last: JsonObject | None, said: list[JsonObject]) -> None:
    if last is not None:
        last.setdefault("tool_calls", []).append(call)
    else:
        said.append({"role": "assistant", "tool_calls": [call]})


def _call(item: Mapping[str, Any]) -> JsonObject:
    name = item["name"]
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
    else:
        arguments = item["arguments"]
        if item.get("namespace"):
            name = f"{item['namespace']}{_NAMESPACE_SEPARATOR}{name}"
    return {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise ValueError("Encrypted content is not supported.")
    for part in (item.get("content") or [])[:1] or (item.get("summary") or [])[:1]:
        return str(part["text"])
    return ""


def _assistant_text(content: Any) -> str | None:
    """The first part's text, as vLLM takes it."""
    if isinstance(content, str):
        return content
    return content[0].get("text") if isinstance(content, list) and content else None


def _function_tools(tools: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Functions as they are, those of a namespace under both names, custom tools as a function of one string."""
    for tool in tools:
        kind = tool.get("type")
        if kind == "function":
            yield tool
        elif kind == "namespace":
            for inner in tool.get("tools") or []:
                if inner.get("type") == "function":
                    yield {**inner, "name": f"{tool['name']}{_NAMESPACE_SEPARATOR}{inner['name']}"}
        elif kind == "custom":
            yield {"name": tool["name"], "description": tool.get("description"), "parameters": _custom_parameters()}


def _chat_tool(tool: Mapping[str, Any]) -> JsonObject:
    known = {name: tool.get(name) for name in ("name", "description", "parameters", "strict", "defer_loading")}
    return {"type": "function", "function": known}


def _custom_parameters() -> JsonObject:
    payload = {"type": "string", "description": "The freeform text payload for this tool."}
    return {"type": "object", "properties": {"input": payload}, "required": ["input"], "additionalProperties": False}
