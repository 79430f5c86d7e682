"""Chat messages and tools in the exact shape in which vLLM 0.32 hands them to a chat template.

vLLM validates messages as typed dictionaries and rebuilds them: content always becomes parts or joined lines, arguments
objects, `reasoning_content` is read as `reasoning` and given under both names (wire: renderers/chat_utils.py, renderers/hf.py,
entrypoints/openai/chat_completion/protocol.py). `tokenize_endpoint` is the shape of its /tokenize, which differs a little.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from engine_adapters.prompt.kimi_tokenizer import LongTexts
from engine_adapters.prompt.profile import Closing, Settings
from engine_adapters.prompt.template import ContentFormat, PromptTemplate, TemplateRefusal
from engine_adapters.prompt.vllm_content_format import content_format_of

JsonObject = dict[str, Any]

_TOOL_FIELDS = ("name", "description", "parameters", "strict", "defer_loading")
_OPTIONAL_TOOL_FIELDS = ("strict", "defer_loading")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
_PART_FIELDS = frozenset(
    {
        "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio", "name",
        "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
    }
)  # fmt: skip
"""Of any kind of part; others are extra members, which reach a template that takes parts."""
_SKIPPED_WHEN_NULL = frozenset({"text", "refusal"})
_CALL_FIELDS = frozenset({"id", "function", "type"})
_BILLING_HEADER = "x-anthropic-billing-header"
_UNSET = (None, "auto")


class VllmProfile:
    """See `PromptProfile`. `tokenize_endpoint`: as /tokenize, which does not know `reasoning_content` nor efforts."""

    name = "vllm 0.32"
    long_texts = LongTexts.BETWEEN_SPECIALS

    def __init__(self, *, tokenize_endpoint: bool = False) -> None:
        self._tokenize_endpoint = tokenize_endpoint

    def content_format(self, template: PromptTemplate) -> ContentFormat:
        return content_format_of(template.source)

    def message(self, message: Mapping[str, Any], content_format: ContentFormat) -> JsonObject:
        reasoning = message.get("reasoning")
        if reasoning is None and not self._tokenize_endpoint:
            reasoning = message.get("reasoning_content")
        return template_message(message, content_format, reasoning)

    def settings(self, body: Mapping[str, Any]) -> Settings:
        tools = body.get("tools")
        continues = bool(body.get("continue_final_message", False))
        prompts = bool(body.get("add_generation_prompt", True))
        if continues and body.get("add_generation_prompt"):
            raise TemplateRefusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        if tools == []:
            raise TemplateRefusal("`tools` must not be an empty array.")
        if continues and prompts:
            raise TemplateRefusal("continue_final_message and add_generation_prompt are not compatible.")
        shaped = None if tools is None else [template_tool(tool) for tool in tools]
        return Settings(shaped, self._variables(body), prompts, continues)

    def closing(self, last: JsonObject, settings: Settings) -> Closing:
        return Closing(last)

    def rearranges(self, message: JsonObject, template: PromptTemplate) -> bool:
        """A template that never names the developer role gets one system message with all that they said."""
        return message["role"] == "developer" and not knows_developer(template)

    def rearranged(self, messages: Sequence[JsonObject]) -> list[JsonObject]:
        return system_first([_as_system(message) if message["role"] == "developer" else message for message in messages])

    def flat_tools(self, tools: Sequence[JsonObject]) -> list[JsonObject] | None:
        return None

    def _variables(self, body: Mapping[str, Any]) -> JsonObject:
        sent: JsonObject = body.get("chat_template_kwargs") or {}
        asked = dict(sent)
        if refused := asked.keys() & {"chat_template", "tokenize"}:
            raise TemplateRefusal(f"Found unexpected chat template kwargs from request: {refused}")
        for taken in ("add_generation_prompt", "continue_final_message", "return_dict", "tools"):
            asked.pop(taken, None)
        asked = {name: value for name, value in asked.items() if value not in _UNSET}
        if self._tokenize_endpoint:
            return asked
        own = {"documents": body.get("documents"), "reasoning_effort": body.get("reasoning_effort")}
        if own["reasoning_effort"] is not None and "enable_thinking" not in sent:
            own["enable_thinking"] = own["reasoning_effort"] != "none"
        return asked | {name: value for name, value in own.items() if value not in _UNSET}


def template_message(message: Mapping[str, Any], content_format: ContentFormat, reasoning: Any = None) -> JsonObject:
    """One message as the template gets it. Raises ValueError for what vLLM refuses and for parts that are not text."""
    role = message["role"]
    shaped: JsonObject = {"role": role, "content": _content(message, content_format)}
    calls = message.get("tool_calls")
    if role == "assistant":
        if calls:
            shaped["tool_calls"] = [_tool_call(call) for call in calls]
        if reasoning is not None:
            shaped["reasoning"] = shaped["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            shaped["tool_call_id"] = message["tool_call_id"]
        shaped["content"] = _tool_content(shaped["content"])
    for field in ("name", "task"):
        if isinstance(message.get(field), str):
            shaped[field] = message[field]
    if role == "developer":
        shaped["tools"] = message.get("tools")
    return shaped


def template_tool(tool: Mapping[str, Any]) -> JsonObject:
    """A tool as dumped: name, description and parameters always, null or not."""
    sent = tool["function"]
    defer = tool.get("defer_loading")
    function = {field: sent.get(field) for field in _TOOL_FIELDS}
    if function["defer_loading"] is None:
        function["defer_loading"] = defer
    for field in _OPTIONAL_TOOL_FIELDS:
        if function[field] is None:
            del function[field]
    shaped = {"type": tool.get("type", "function"), "function": function}
    return shaped if defer is None else {**shaped, "defer_loading": defer}


def knows_developer(template: PromptTemplate) -> bool:
    return '"developer"' in template.source or "'developer'" in template.source


def system_first(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """All system messages as one at the beginning, unless there is but one and it is there already."""
    places = [place for place, message in enumerate(messages) if message["role"] == "system"]
    if places in ([], [0]):
        return list(messages)
    texts = [text for place in places if (text := _joined(messages[place].get("content", "")))]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: JsonObject) -> JsonObject:
    return {field: value for field, value in {**message, "role": "system"}.items() if field != "tools"}


def _joined(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return "\n".join(
        part if isinstance(part, str) else part["text"] for part in content if isinstance(part, str) or "text" in part
    )


def _content(message: Mapping[str, Any], content_format: ContentFormat) -> str | list[JsonObject]:
    content = message.get("content")
    parts: Sequence[Any] = (
        [] if content is None else [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    if message["role"] == "system":
        parts = [kept for part in parts if (kept := _without_billing(part)) is not None]
    shaped = [part for part in map(_part, parts) if part is not None]
    if content_format == "openai":
        return shaped
    texts = (part["text"] if part["type"] == "text" else part["name"] for part in shaped)
    return "\n".join(text for text in texts if text)


def _part(part: Any) -> JsonObject | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        text = part.get(_TEXT_PARTS[kind])
        if text is None and kind in _SKIPPED_WHEN_NULL:
            return None
        return {"type": "text", "text": text, **_extra(part, _PART_FIELDS)}
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")}
    raise ValueError(f"a content part of type {kind!r} has no derivable prompt")


def _tool_content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Parts that are all text become lines: most templates want text from a tool."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _without_billing(part: Any) -> Any:
    """Claude Code's line that changes on every request is left out of the system prompt."""
    text = part if isinstance(part, str) else part.get("text") if part.get("type") == "text" else None
    if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else {**part, "text": rest}


def _tool_call(call: Mapping[str, Any]) -> JsonObject:
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise ValueError("chat completions only support assistant tool_calls of type 'function'.")
    shaped = {"arguments": _arguments(function.get("arguments")), "name": function.get("name")}
    return {
        "id": call.get("id"),
        "function": {**shaped, **_extra(function, shaped)},
        "type": "function",
        **_extra(call, _CALL_FIELDS),
    }


def _extra(sent: Mapping[str, Any], known: Container[str]) -> JsonObject:
    """Members that no schema knows stay, behind the others."""
    return {name: value for name, value in sent.items() if name not in known}


def _arguments(arguments: Any) -> JsonObject:
    """An object, whatever was sent: broken history must not make a conversation unusable."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return {}
    return arguments if isinstance(arguments, dict) else {}
