"""Output items of a Responses reply: messages and calls, and what their state says of the whole."""

from __future__ import annotations

import json
import uuid
from typing import Any

from engine_adapters.emulator.reply.tools import PlannedCall, ToolKind
from engine_adapters.emulator.worker.job import Step


def message_item(item_id: str, text: str, phase: str) -> dict[str, Any]:
    part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    return {
        "id": item_id,
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": phase,
    }


def call_item(
    call: PlannedCall,
    item_id: str | None = None,
    call_id: str | None = None,
    *,
    unfinished: bool = False,
    said: str | None = None,
) -> dict[str, Any]:
    """A finished call, or an `unfinished` one whose payload is still to come; `said` replaces a payload that was cut off."""
    call_id = call_id or f"call_{uuid.uuid4().hex[:24]}"
    text = "" if unfinished else payload(call) if said is None else said
    if call.tool.kind is ToolKind.CUSTOM:
        return {
            "call_id": call_id,
            "input": text,
            "name": call.tool.name,
            "type": "custom_tool_call",
            "id": item_id or f"ctc_{uuid.uuid4().hex[:8]}",
        }
    return {
        "arguments": text,
        "call_id": call_id,
        "name": call.tool.name,
        "type": "function_call",
        "id": item_id or f"fc_{uuid.uuid4().hex[:8]}",
        "status": "in_progress" if unfinished else "completed",
    }


def payload(call: PlannedCall) -> str:
    """What the client gets: a function's arguments as JSON text, a custom tool's input as it is."""
    if call.tool.kind is ToolKind.CUSTOM:
        return str(json.loads(call.arguments)["input"])
    return call.arguments


def payload_known(call: PlannedCall, spoken: int) -> int:
    """How many characters of the payload stand in the first `spoken` characters of the arguments as the model wrote them."""
    whole = payload(call)
    if call.tool.kind is not ToolKind.CUSTOM:
        return max(min(spoken, len(whole)), 0)
    start = call.arguments.index('"', call.arguments.index(":")) + 1
    known = 0
    while known < len(whole) and start + len(json.dumps(whole[: known + 1], ensure_ascii=False)) - 2 <= spoken:
        known += 1
    return known


def status_of(step: Step) -> str:
    reason = step.finish.reason if step.finish else "stop"
    return {"length": "incomplete", "abort": "failed"}.get(reason, "completed")


def error_of(step: Step) -> dict[str, str] | None:
    if step.finish is None or step.finish.reason != "abort":
        return None
    return {"code": "server_error", "message": step.finish.message or "Generation aborted"}
