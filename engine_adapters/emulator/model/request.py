"""What an engine model is asked to do and what it reports back."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Namespace(NamedTuple):
    """What keeps equal tokens apart in the cache. Only the salt takes part in the hashes that events carry."""

    extra_key: str | None = None
    cache_salt: str | None = None


SHARED = Namespace()


class EngineRequest(msgspec.Struct, frozen=True):
    """One sequence. `output_tokens` is what the model will say (at least 1); the scheduler itself only sees `max_new_tokens`.

    `pages` are the chained hashes of the full pages of prompt + output without its last token; `tokens` the ids behind them,
    None where nobody publishes them. `namespace` keeps salted requests apart.
    """

    rid: str
    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int
    pages: Sequence[int]
    tokens: Sequence[int] | None = None
    namespace: Namespace = SHARED
    keep: bool = True  # False: computed pages are dropped afterwards (SGLang's FAKE bootstrap host)
    paired: bool = False  # the other half of the work happens on another engine


class Cached(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed, by where they lay. `storage`: a shared pool, read when the request came."""

    device: int = 0
    host: int = 0
    storage: int = 0

    @property
    def tokens(self) -> int:
        return self.device + self.host + self.storage


class FinishReason(StrEnum):
    DONE = "done"  # everything that was to be said has been said
    ABORT = "abort"
    ABORT_QUEUED = "abort_queued"  # while it waited or between two chunks of its prompt


class Progress(msgspec.Struct, frozen=True):
    """`output_tokens` tokens of the reply exist now."""

    rid: str
    at_ms: float
    output_tokens: int
    cached: Cached


class Allocated(msgspec.Struct, frozen=True):
    """A decode engine has room; its prefill partner may transfer. `resident_tokens` need not be sent."""

    rid: str
    at_ms: float
    resident_tokens: int


class Transferred(msgspec.Struct, frozen=True):
    """A prefill engine has sent all KV and the first token."""

    rid: str
    at_ms: float
    cached: Cached


class Finished(msgspec.Struct, frozen=True):
    """The request has left the engine; nothing more comes for it."""

    rid: str
    at_ms: float
    output_tokens: int
    cached: Cached
    reason: FinishReason


Outcome = Progress | Allocated | Transferred | Finished
