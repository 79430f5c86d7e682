"""A reply, a stretch of KV events and a change of load, reduced to what two engines must have in common.

Everything becomes a flat `path -> value` mapping, so that a difference has one name. What a model says, ids and times are left
out; key sets, types, fixed words, token counts, framing and headers stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pd_pair import Reply

from engine_adapters.base import LoadReport
from kvtier.index.events import AllCleared, BlockEvent, BlocksStored

Observation = dict[str, object]

_LITERAL = frozenset({"object", "type", "role", "finish_reason", "stop_reason", "status", "code", "param", "reason", "name"})
_FREE_HEADERS = frozenset({"date", "content-length"})
_SCRUB = re.compile(r"[0-9a-f]{32}|0x[0-9a-f]+|\d+")


def of_reply(reply: Reply) -> Observation:
    streamed = reply.headers["content-type"].startswith("text/event-stream") if "content-type" in reply.headers else False
    seen: Observation = {"status": reply.status}
    seen |= {f"header.{name}": value for name, value in reply.headers.items() if name not in _FREE_HEADERS}
    return seen | (_stream(reply.text) if streamed else _whole(reply))


def of_events(events: Iterable[BlockEvent], prompts: Sequence[Sequence[int]]) -> Observation:
    """Events in their order, blocks named by prompt and position; `prompts` are the block ids of the prompts that were sent.

    A block that belongs to no prompt is the reply's. Events of one kind and tier in a row count as one: engines may batch them.
    """
    named = [(block, f"{number}:{at}") for number, blocks in enumerate(prompts) for at, block in enumerate(blocks)]
    names = dict(reversed(named))  # a block that prompts share has the first one's name
    runs: list[tuple[str, list[str]]] = []
    for event in events:
        kind = _kind(event)
        blocks = [] if isinstance(event, AllCleared) else [names.get(block, "reply") for block in event.hashes]
        if runs and runs[-1][0] == kind and kind != "cleared":
            runs[-1][1].extend(blocks)
        else:
            runs.append((kind, blocks))
    return {f"events.{at}.{kind}": " ".join(blocks) for at, (kind, blocks) in enumerate(runs)} | {"events.runs": len(runs)}


def of_loads(before: Sequence[LoadReport], after: Sequence[LoadReport]) -> Observation:
    """What one rank's counters gained, and whether it is idle again."""
    ((first, last),) = zip(before, after, strict=True)
    computed = (last.prefill_uncached_tokens_total or 0) - (first.prefill_uncached_tokens_total or 0)
    busy = (last.prefill_busy_us_total or 0) > (first.prefill_busy_us_total or 0)
    return {
        "load.computed_tokens": computed,
        "load.was_busy": busy,
        "load.running": last.running_requests,
        "load.waiting": last.waiting_requests,
        "load.waiting_uncached_tokens": last.waiting_uncached_tokens,
        "load.kv_tokens_capacity": last.kv_tokens_capacity,
        "load.max_running_requests": last.max_running_requests,
        "load.tells_transfer": last.transfer_bytes_per_ms is not None,
    }


def under(prefix: str, seen: Observation) -> Observation:
    return {f"{prefix}.{path}": value for path, value in seen.items()}


def _kind(event: BlockEvent) -> str:
    if isinstance(event, AllCleared):
        return "cleared"
    tier = event.tier.name if event.tier is not None else "any"
    return f"{'stored' if isinstance(event, BlocksStored) else 'removed'} {tier}"


def _whole(reply: Reply) -> Observation:
    try:
        parsed = json.loads(reply.content)
    except ValueError:
        return {"body": _SCRUB.sub("#", reply.text)}
    return dict(_paths(parsed, "body")) | _numbers(parsed)


def _stream(text: str) -> Observation:
    """Framing and the shapes of the events in order, runs of one shape counted once."""
    blocks = text.split("\n\n")
    shapes: list[str] = []
    found: Observation = {"stream.ends_in_blank_line": blocks[-1] == "", "stream.done": blocks[-2:-1] == ["data: [DONE]"]}
    for block in blocks[:-1]:
        fields = [line.partition(": ") for line in block.split("\n")]
        data = "".join(value for name, _, value in fields if name == "data")
        named = " ".join(f"{name}={value}" for name, _, value in fields if name != "data")
        shape = f"{named} {data if data == '[DONE]' else _shape(json.loads(data))}".strip()
        if not shapes or shapes[-1] != shape:
            shapes.append(shape)
        if data != "[DONE]":
            found |= _numbers(json.loads(data))
    return found | {f"stream.{at:02}": shape for at, shape in enumerate(shapes)}


def _paths(value: Any, path: str, key: str = "") -> Iterable[tuple[str, str]]:
    """The shape of a whole body, member by member; items of a list count as one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}", name)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        merged: dict[str, list[str]] = {}
        for inner in value:
            for name, shape in _paths(inner, f"{path}[]", key):
                merged.setdefault(name, []).append(shape)
        yield from ((name, " ".join(dict.fromkeys(shapes))) for name, shapes in merged.items())
    else:
        yield path, _shape(value, key)


def _shape(value: Any, key: str = "") -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shape(inner, name)}" for name, inner in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + " ".join(dict.fromkeys(_shape(inner, key) for inner in value)) + "]"
    if key in _LITERAL and isinstance(value, str | int | None):
        return json.dumps(value)
    if key == "message" and isinstance(value, str):
        return json.dumps(_SCRUB.sub("#", value))
    return "null" if value is None else type(value).__name__


def _numbers(parsed: Any) -> Observation:
    """Token counts and cache details, wherever the API keeps them."""
    if not isinstance(parsed, dict):
        return {}
    inner = parsed.get("response") or parsed.get("message")
    holder = inner if isinstance(inner, dict) else parsed
    found: Observation = {}
    for name in ("usage", "sglext"):
        if holder.get(name):
            found |= {f"{name}.{path}": value for path, value in _leaves(holder[name])}
    return found


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value
