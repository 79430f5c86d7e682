"""Which of the offered tools an emulated agent calls, and with what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from engine_adapters.emulator.reply.schema import synthesise


class ToolKind(StrEnum):
    FUNCTION = "function"  # arguments are a JSON object
    CUSTOM = "custom"  # input is free text (Responses API)


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool of the request, whatever its dialect."""

    name: str
    kind: ToolKind = ToolKind.FUNCTION
    parameters: Mapping[str, Any] | None = None


class PlannedCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON text; a custom tool's free text is its `input` member, as the model is shown it."""

    tool: OfferedTool
    arguments: str


_SHELL_NAMES = ("bash", "shell", "exec_command", "run_shell_command", "shell_command", "run_commands", "run_command", "execute")
_READ_NAMES = ("read", "read_file", "readfile", "view", "list", "list_dir", "ls", "glob")


def choose(tools: Sequence[OfferedTool], named: str | None = None) -> OfferedTool | None:
    """The named tool, else a shell, else one that reads, else the first."""
    if named is not None:
        return next((tool for tool in tools if tool.name == named), None)
    for names in (_SHELL_NAMES, _READ_NAMES):
        for name in names:
            for tool in tools:
                if tool.name.lower() == name:
                    return tool
    return next((tool for tool in tools if any(word in tool.name.lower() for word in ("shell", "bash", "read"))), _first(tools))


def call(tool: OfferedTool, command: str | None = None) -> PlannedCall:
    """A call of `tool`; `command` replaces the shell command where the tool takes one."""
    if tool.kind is ToolKind.CUSTOM:
        return PlannedCall(tool, json.dumps({"input": command or "ls -la"}, ensure_ascii=False))
    arguments = synthesise(tool.parameters or {"type": "object"})
    if not isinstance(arguments, dict):
        arguments = {}
    if command is not None:
        for key in ("command", "cmd"):
            if key in arguments:
                arguments[key] = ["bash", "-lc", command] if isinstance(arguments[key], list) else command
    return PlannedCall(tool, json.dumps(arguments, ensure_ascii=False))


def _first(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    return tools[0] if tools else None
