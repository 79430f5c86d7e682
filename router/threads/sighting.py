"""What the thread store says of one request: which conversation it belongs to and how much of it was seen before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import overload

import msgspec

from costmodel.values import WorkerKey


class Kind(StrEnum):
    NEW = "new"  # no conversation that this one continues
    CONTINUED = "continued"  # the thread's last request, and more
    RESUMED = "resumed"  # continued after idling beyond the resume gap
    RETRY = "retry"  # the thread's last request again
    FORK = "fork"  # leaves another thread's history in the middle; a thread of its own from here on
    COMPACTED = "compacted"  # the same client thread with its history rewritten shorter


class TokenCounts(Sequence[int]):
    """Estimated prompt tokens up to and including each position: canonical bytes times tokens per byte, computed when asked."""

    __slots__ = ("_sizes", "_tokens_per_byte")

    def __init__(self, sizes: Sequence[int], tokens_per_byte: float) -> None:
        self._sizes = sizes
        self._tokens_per_byte = tokens_per_byte

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def prompt_bytes(self) -> int:
        """Canonical bytes of the whole prompt."""
        return self._sizes[-1]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [round(size * self._tokens_per_byte) for size in self._sizes[index]]
        return round(self._sizes[index] * self._tokens_per_byte)

    def __iter__(self) -> Iterator[int]:
        scale = self._tokens_per_byte
        return (round(size * scale) for size in self._sizes)


class Sighting(msgspec.Struct, frozen=True):
    """One request, recognised. Position 0 of a lineage is the head (model, tools, system prompt); each message adds one.

    `digests[i]` names the whole prompt up to position i (signed 64 bit), `tokens[i]` estimates its length. The first `known`
    positions were part of some earlier request; `known_tokens` is their length.
    """

    thread: str  # short, printable, stable while the thread is remembered
    session: str  # the thread's family: root and subagents share it
    kind: Kind
    first_call: bool  # DESIGN section 1; a retry counts as what it repeats
    digests: array[int]  # typecode q
    tokens: TokenCounts
    prompt_tokens: int  # the last of them
    known: int
    known_tokens: int
    multimodal: bool  # some message has a part that is not text: block ids cannot be derived
    parent: str | None  # the thread it was forked or spawned from
    session_started_ms: float
    idle_ms: float  # since the thread's last request, 0 for a new one
    retries: int  # how often this very request was sent before
    expected_output_tokens: int
    prefill_before: WorkerKey | None = None
    decode_before: WorkerKey | None = None
    placed_ms: float | None = None  # when it was sent there
    blocks: array[int] = array("q")  # block hashes of the thread's prompt so far, where a tokenizer is configured
    block_tokens: int = 0
    counted: bool = False  # an engine has counted this very prompt: `prompt_tokens` is no estimate
