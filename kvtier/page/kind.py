"""What part of a prompt a page belongs to, in the order in which Sutradhara gives parts up (arXiv 2601.12967)."""

from __future__ import annotations

from enum import IntEnum


class PageKind(IntEnum):
    """First evicted first."""

    RESPONSE = 0
    TOOL_OUTPUT = 1
    USER_QUERY = 2  # also what nobody has named
    SYSTEM_PROMPT = 3
    PARTIAL_PREFILL = 4
