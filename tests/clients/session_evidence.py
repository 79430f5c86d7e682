"""What a CLI's session left behind: each main-loop call as it went over the wire, beside the gateway's record of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from client_stage import Stage
from wiretap import HttpExchange, Wiretap

from router.dialects import DIALECTS

_RESULT_TYPES = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """`record` is the entry of `/admin/decisions`."""

    exchange: HttpExchange
    record: dict[str, Any]

    @property
    def thread(self) -> str:
        return str(self.record["thread"])

    @property
    def kind(self) -> str:
        return str(self.record["kind"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.record["actual"]["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        return int(self.record["actual"]["cached_tokens"] or 0)

    @property
    def offers_tools(self) -> bool:
        return bool(self.exchange.json().get("tools"))

    @property
    def tool_results(self) -> list[str]:
        return list(_tool_results(self.exchange.json()))


async def session_turns(tap: Wiretap, stage: Stage) -> list[SessionTurn]:
    """Every inference call that went through the tap, in the order of arrival. Each of them was answered and recorded."""
    records = {record["id"]: record for record in await stage.decisions()}
    calls = [exchange for exchange in tap.exchanges() if exchange.path in DIALECTS]
    turns = [SessionTurn(call, records[call.reply.headers["x-loadback-request-id"]]) for call in calls]
    return sorted(turns, key=lambda turn: turn.record["at_s"])


def _tool_results(body: dict[str, Any]) -> Iterator[str]:
    """In any of the three dialects."""
    for item in body.get("input") or []:
        if item.get("type") in _RESULT_TYPES:
            yield json.dumps(item)
    for message in body.get("messages") or []:
        if message["role"] == "tool":
            yield json.dumps(message)
        elif isinstance(parts := message.get("content"), list):
            yield from (json.dumps(part) for part in parts if part["type"] == "tool_result")
