"""The typed events of a streamed Responses reply, in SGLang's order (wire: `_responses_stream_generator_non_harmony`)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine_adapters.emulator.reply.tools import PlannedCall, ToolKind
from engine_adapters.emulator.wire import responses_items as items
from engine_adapters.emulator.worker.driver import Failure
from engine_adapters.emulator.worker.job import Job, Step


class ResponseMaker(Protocol):
    """The call that a stream belongs to."""

    jobs: tuple[Job, ...]

    def response(
        self, status: str, output: Sequence[dict[str, Any]], step: Step | None, error: dict[str, str] | None = None
    ) -> dict[str, Any]: ...


class ResponsesStream:
    """One item at a time: a message of text, or a call whose arguments arrive in pieces."""

    def __init__(self, call: ResponseMaker) -> None:
        self._call = call
        self._sequence = 0
        self._done: list[dict[str, Any]] = []
        self._item_id: str | None = None
        self._call_id = ""
        self._text = ""
        self._seen = 0
        self._told = 0

    def start(self) -> list[bytes]:
        response = self._call.response("in_progress", [], None)
        return [self._event({"type": kind, "response": response}) for kind in ("response.created", "response.in_progress")]

    def step(self, step: Step) -> list[bytes]:
        plan = step.job.plan
        self._text += "".join(plan.pieces[self._seen : step.tokens])
        self._seen = step.tokens
        if plan.calls:
            return self._call_events(plan.calls[0], plan.name_end, plan.arguments_at)
        return self._text_events()

    def end(self, last: Sequence[Step]) -> list[bytes]:
        step = last[0]
        events = self._close(step)
        status = items.status_of(step)
        response = self._call.response(status, self._done, step, items.error_of(step))
        return [*events, self._event({"type": f"response.{status}", "response": response})]

    def failure(self, failure: Failure, last: Sequence[Step]) -> list[bytes]:
        job = self._call.jobs[0]
        step = last[-1] if last else Step(job, 0)
        error = {"code": "server_error", "message": failure.message}
        response = self._call.response("failed", self._done, None if failure.refused else step, error)
        return [self._event({"type": "response.failed", "response": response})]

    def _text_events(self) -> list[bytes]:
        delta = self._text[self._told :]
        if not delta:
            return []
        self._told = len(self._text)
        events = []
        if self._item_id is None:
            self._item_id = f"msg_{uuid.uuid4().hex}"
            item = {**items.message_item(self._item_id, "", "final_answer"), "content": [], "status": "in_progress"}
            events.append(self._item_event("response.output_item.added", item))
            events.append(self._part_event("response.content_part.added", ""))
        return [
            *events,
            self._event(
                {
                    "content_index": 0,
                    "delta": delta,
                    "item_id": self._item_id,
                    "logprobs": [],
                    "output_index": 0,
                    "sequence_number": 0,
                    "type": "response.output_text.delta",
                }
            ),
        ]

    def _call_events(self, call: PlannedCall, name_end: int, arguments_at: int) -> list[bytes]:
        if len(self._text) < name_end:
            return []
        events = []
        if self._item_id is None:
            prefix = "ctc" if call.tool.kind is ToolKind.CUSTOM else "fc"
            self._item_id, self._call_id = f"{prefix}_{uuid.uuid4().hex[:8]}", f"call_{uuid.uuid4().hex[:24]}"
            events.append(
                self._item_event(
                    "response.output_item.added", items.call_item(call, self._item_id, self._call_id, unfinished=True)
                )
            )
        whole = items.payload(call)
        known = items.payload_known(call, len(self._text) - arguments_at)
        if known > self._told:
            delta, self._told = whole[self._told : known], known
            kind = "custom_tool_call_input" if call.tool.kind is ToolKind.CUSTOM else "function_call_arguments"
            events.append(
                self._event(
                    {
                        "delta": delta,
                        "item_id": self._item_id,
                        "output_index": 0,
                        "sequence_number": 0,
                        "type": f"response.{kind}.delta",
                    }
                )
            )
        return events

    def _close(self, step: Step) -> list[bytes]:
        if self._item_id is None:
            return []
        if step.job.plan.calls:
            return self._close_call(step.job.plan.calls[0])
        item = items.message_item(self._item_id, self._text, "final_answer")
        self._done.append(item)
        done = {
            "content_index": 0,
            "item_id": self._item_id,
            "logprobs": [],
            "output_index": 0,
            "sequence_number": 0,
            "text": self._text,
            "type": "response.output_text.done",
        }
        return [
            self._event(done),
            self._part_event("response.content_part.done", self._text),
            self._item_event("response.output_item.done", item),
        ]

    def _close_call(self, call: PlannedCall) -> list[bytes]:
        said = items.payload(call)[: self._told]
        item = items.call_item(call, self._item_id, self._call_id, said=said)
        self._done.append(item)
        done: dict[str, Any] = {"item_id": self._item_id, "output_index": 0, "sequence_number": 0}
        if call.tool.kind is ToolKind.CUSTOM:
            done = {"input": said, **done, "type": "response.custom_tool_call_input.done"}
        else:
            named = {"arguments": said, "item_id": self._item_id, "name": call.tool.name}
            done = {**named, **done, "type": "response.function_call_arguments.done"}
        return [self._event(done), self._item_event("response.output_item.done", item)]

    def _item_event(self, kind: str, item: Mapping[str, Any]) -> bytes:
        return self._event({"item": item, "output_index": 0, "sequence_number": 0, "type": kind})

    def _part_event(self, kind: str, text: str) -> bytes:
        part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
        return self._event(
            {
                "content_index": 0,
                "item_id": self._item_id,
                "output_index": 0,
                "part": part,
                "sequence_number": 0,
                "type": kind,
            }
        )

    def _event(self, event: dict[str, Any]) -> bytes:
        event["sequence_number"] = self._sequence
        self._sequence += 1
        return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
