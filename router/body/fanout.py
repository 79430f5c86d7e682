"""One request for n choices as n requests for one, and their replies as one again.

A disaggregated pair of SGLang never answers `n` > 1 (checked on 0.5.23), so the router asks n times. Choices keep their raw
bytes: only their index is rewritten. The prompt was the same, so its tokens count once; completion tokens add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from router.body.members import Member, elements, member

ONE_CHOICE = b'"n":1'
"""The member that makes each of the n requests ask for one choice."""

_ADDED = frozenset({"completion_tokens", "reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"})


def rewrite_choice_index(event: bytes, index: int, chunk_id: bytes | None = None) -> bytes:
    """A chunk (or a whole reply) of one of the n requests, with its choices' `index` set.

    `chunk_id` (raw, without quotes) replaces its `id`: clients take the chunks of one stream to have one. Events without
    choices pass as they are.
    """
    start = event.find(b"{")
    if start < 0 or b'"choices"' not in event:
        return event
    edits = _index_edits(event, start, index)
    identity = member(event, b"id", start) if chunk_id is not None else None
    if identity is not None and chunk_id is not None:
        edits.append((identity.value, identity.end, b'"' + chunk_id + b'"'))
    return _apply(event, edits)


def merge_replies(replies: Sequence[bytes]) -> bytes:
    """The n whole replies as one: the first, with all choices and the summed usage."""
    numbered = [rewrite_choice_index(reply, index) for index, reply in enumerate(replies)]
    first = numbered[0]
    choices = [b",".join(_choices(reply)) for reply in numbered]
    edits = [(*_span(first, b"choices"), b"[" + b",".join(part for part in choices if part) + b"]")]
    usages = [reply[found.value : found.end] for reply in numbered if (found := member(reply, b"usage")) is not None]
    if len(usages) == len(numbered):
        edits.append((*_span(first, b"usage"), merge_usages(usages)))
    return _apply(first, edits)


def merge_usages(usages: Sequence[bytes]) -> bytes:
    """Raw usage objects of the n requests as one."""
    parsed = [usage for raw in usages if isinstance(usage := msgspec.json.decode(raw), dict)]
    if not parsed:
        return b"null"
    merged: dict[str, Any] = _sum(parsed)
    if isinstance(prompt := merged.get("prompt_tokens"), int) and isinstance(done := merged.get("completion_tokens"), int):
        merged["total_tokens"] = prompt + done
    return msgspec.json.encode(merged)


def _sum(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """The first of `usages`, with what counts output added up over all, also one level down."""
    merged = dict(usages[0])
    for key, value in usages[0].items():
        others = [usage.get(key) for usage in usages]
        if key in _ADDED:
            merged[key] = sum(count for count in others if isinstance(count, int))
        elif isinstance(value, dict) and key != "prompt_tokens_details":
            merged[key] = _sum([other for other in others if isinstance(other, dict)])
    return merged


def _index_edits(event: bytes, start: int, index: int) -> list[tuple[int, int, bytes]]:
    found = member(event, b"choices", start)
    if found is None or event[found.value : found.value + 1] != b"[":
        return []
    number = str(index).encode()
    indexes = [member(event, b"index", at) for at, _ in elements(event, found.value)]
    return [(place.value, place.end, number) for place in indexes if place is not None]


def _choices(reply: bytes) -> list[bytes]:
    found = member(reply, b"choices")
    return [] if found is None else [reply[start:end] for start, end in elements(reply, found.value)]


def _span(reply: bytes, key: bytes) -> tuple[int, int]:
    found: Member | None = member(reply, key)
    if found is None:
        raise ValueError(f"the reply has no {key.decode()}")
    return found.value, found.end


def _apply(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """`text` with each span replaced; spans do not overlap."""
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text
