"""What the planner wants done. Ids are unique for the planner's life; `job` names whom a move is for."""

from __future__ import annotations

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.view import Path


class Stage(msgspec.Struct, frozen=True, gc=False):
    """Copy `tokens` of the subject's prompt from `start` on along `path` into the target's L3 (from its own SSD where both ends
    are one), no faster than `bytes_per_ms`. A range that is there already ends at once with nothing moved."""

    move: int
    job: int
    subject: str
    path: Path
    start: int
    tokens: int
    size_bytes: int
    deadline_ms: float  # after which it is of no use
    bytes_per_ms: float
    max_bytes: int | None = None  # not to be exceeded, whatever its pages weigh; None = no such bound


class Warm(msgspec.Struct, frozen=True, gc=False):
    """Have the engine restore the leading `tokens` of the subject's prompt to L1. `size_bytes` of KV are those from `start` on;
    what lies before them the engine has."""

    move: int
    job: int
    subject: str
    worker: WorkerKey
    tokens: int
    size_bytes: int
    deadline_ms: float
    start: int = 0


class CancelMove(msgspec.Struct, frozen=True, gc=False):
    """The move is of no use any more. What has come stays; nothing is answered."""

    move: int


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Keep the subject's leading `tokens` in the node's L3 and L4 until `Release`, or for `ttl_ms`; where some of those before
    `moved_from` lie in its engine alone, those from there on."""

    job: int
    subject: str
    node: str
    tokens: int
    ttl_ms: float
    moved_from: int = 0


class Release(msgspec.Struct, frozen=True, gc=False):
    job: int


Move = Stage | Warm | CancelMove | Hold | Release
