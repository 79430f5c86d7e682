"""Prompts that clients named by tokens, messages or hashes: kept while their prefetch runs, found again in turns that begin
with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from router.errors import QueueFull
from router.fleet.pool import Pool

_MAX_BYTES = 64 << 20


class Named(msgspec.Struct, frozen=True):
    """`blocks`: at least one. `ids` empty: only hashes were given, so that no engine can be asked for it."""

    pool: Pool
    digests: bytes
    blocks: Sequence[int]
    block_tokens: int
    ids: Sequence[int] = ()
    cache_salt: str | None = None

    @property
    def kept_bytes(self) -> int:
        return len(self.digests) + 8 * len(self.blocks) + 4 * len(self.ids)

    def leads(self, blocks: Sequence[int]) -> bool:
        """Whether a prompt of these blocks begins with this one: an id says what lies before it as well."""
        count = len(self.blocks)
        return count <= len(blocks) and self.blocks[count - 1] == blocks[count - 1]


class NamedPrompts:
    def __init__(self) -> None:
        self._prompts: dict[str, Named] = {}
        self._next = 1

    def add(self, named: Named, runs: Callable[[str], bool]) -> str:
        """Its subject. Those of which nothing `runs` any more are forgotten. Raises `QueueFull`."""
        self._prompts = {subject: each for subject, each in self._prompts.items() if runs(subject)}
        kept_bytes = sum(each.kept_bytes for each in self._prompts.values())
        if kept_bytes + named.kept_bytes > _MAX_BYTES:
            raise QueueFull(f"prompts of {kept_bytes} bytes are being prefetched, of at most {_MAX_BYTES}")
        subject = f"ask-{self._next}"
        self._next += 1
        self._prompts[subject] = named
        return subject

    def get(self, subject: str) -> Named | None:
        return self._prompts.get(subject)

    def leading(self, blocks: Sequence[int]) -> list[str]:
        """The subjects with which a prompt of these blocks begins, the longest first."""
        found = [(len(named.blocks), subject) for subject, named in self._prompts.items() if named.leads(blocks)]
        return [subject for _, subject in sorted(found, reverse=True)]
