"""One streamed chat completion, put together from its server-sent events.

It reads the OpenAI chunk format and nothing else; a stream that ends without its end marker, or that carries an error event, is
a `BrokenReply`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class BrokenReply(Exception):
    """The stream failed: an error event, an end without `[DONE]`, or bytes that are not a chunk."""


class FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class Choice(msgspec.Struct):
    delta: Delta
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class ToolCall(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: str = ""


class Reply:
    """Grows with each line of the stream; `complete` once the end marker has come."""

    def __init__(self) -> None:
        self.text = ""
        self.tool_calls: list[ToolCall] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.complete = False
        self._decoder = msgspec.json.Decoder(Chunk)

    def feed(self, line: str) -> bool:
        """Take one line of the stream; True if it brought the model's output on."""
        if not line.startswith("data:"):
            return False
        data = line[5:].strip()
        if data == "[DONE]":
            self.complete = True
            return False
        try:
            chunk = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise BrokenReply(f"not a chat chunk: {data[:200]}") from error
        if chunk.error is not None:
            raise BrokenReply(f"error event: {chunk.error}")
        self.usage = chunk.usage or self.usage
        taken = [self._take(choice) for choice in chunk.choices]  # every choice, not only up to the first that has output
        return any(taken)

    def finish(self) -> None:
        if not self.complete or self.finish_reason is None:
            raise BrokenReply("the stream ended without finish_reason and [DONE]")

    def as_message(self) -> dict[str, Any]:
        """The assistant message that an agent appends to its history, arguments verbatim."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message

    def _take(self, choice: Choice) -> bool:
        delta = choice.delta
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.text += delta.content or ""
        for call in delta.tool_calls or ():
            self._take_tool_call(call)
        return bool(delta.content or delta.reasoning_content or delta.tool_calls)

    def _take_tool_call(self, delta: ToolCallDelta) -> None:
        while len(self.tool_calls) <= delta.index:
            self.tool_calls.append(ToolCall())
        call = self.tool_calls[delta.index]
        call.id = delta.id or call.id
        if delta.function:
            call.name += delta.function.name or ""
            call.arguments += delta.function.arguments or ""
