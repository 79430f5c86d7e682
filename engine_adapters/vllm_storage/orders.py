"""What the scheduler's side tells the workers' side with each step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadBlocks:
    """Restore `block_ids`, pages of a prompt with joined `digests`, while the request waits."""

    request: str
    digests: bytes
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveBlocks:
    """Store `block_ids`, pages `depth`, `depth` + 1, ... of a prompt, which are computed when this step has ended."""

    digests: bytes
    block_ids: tuple[int, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Orders:
    loads: list[LoadBlocks] = field(default_factory=list)
    saves: list[SaveBlocks] = field(default_factory=list)
