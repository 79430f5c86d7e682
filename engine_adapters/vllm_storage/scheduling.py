"""The scheduler's side: how much of a prompt the agent has, and which blocks are to be loaded and saved in a step.

Knows vLLM's requests by their attributes alone. Whatever is not known in time is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine_adapters.vllm_storage.orders import LoadBlocks, Orders, SaveBlocks
from kvtier.page.key import DIGEST_BYTES

_MAX_LOADS = 2  # of one request: a load that failed is asked for again, which must end

Look = Callable[[bytes], int]
"""Pages of the leading run that every rank could have; 0 where that is not known in time."""


class Request(Protocol):
    """vLLM's, as far as it is used here. `block_hashes` grows as tokens come."""

    request_id: str
    num_tokens: int
    block_hashes: Sequence[bytes]


@dataclass(slots=True)
class _Tracked:
    """`done` blocks of a request are stored, or were ordered to be; `loads` were ordered so far."""

    hashes: Sequence[bytes]
    done: int
    loads: int


@dataclass(frozen=True, slots=True)
class _Found:
    """At the agent: the leading run, and what of it, or behind it, follows on the `computed` blocks."""

    leading: int
    computed: int
    restorable: int


class Scheduling:
    """One per engine. For the scheduler's thread alone."""

    def __init__(self, look: Look, block_tokens: int) -> None:
        self._look = look
        self._block_tokens = block_tokens
        self._found: dict[str, _Found] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[LoadBlocks] = []

    def matched_tokens(self, request: Request, computed_tokens: int) -> int:
        """Tokens that can be restored behind those computed; the last token is always left to compute.

        May be asked again; the last answer counts.
        """
        computed = computed_tokens // self._block_tokens
        wanted = request.block_hashes[: (request.num_tokens - 1) // self._block_tokens]
        leading = self._run(wanted, 0)
        restorable = leading - computed if leading > computed else self._run(wanted, computed)
        if self._loads_of(request.request_id) >= _MAX_LOADS:
            restorable = 0
        self._found[request.request_id] = _Found(leading, computed, restorable)
        return restorable * self._block_tokens

    def allocated(self, request: Request, block_ids: Sequence[int], external_tokens: int) -> None:
        """vLLM has given the request blocks, `external_tokens` of which are to be restored."""
        found = self._found.pop(request.request_id, None)
        if found is None:
            return
        restored = external_tokens // self._block_tokens
        end = found.computed + restored
        if restored:
            digests = b"".join(request.block_hashes[found.computed : end])
            self._loads.append(LoadBlocks(request.request_id, digests, tuple(block_ids[found.computed : end])))
        loads = self._loads_of(request.request_id) + bool(restored)
        # blocks that vLLM still has and the agent has lost are stored once more
        self._tracked[request.request_id] = _Tracked(request.block_hashes, min(found.leading, end), loads)

    def orders(
        self, scheduled: Mapping[str, tuple[int, int]], block_ids: Callable[[str], Sequence[int]], finished: set[str]
    ) -> Orders:
        """For one step: `scheduled` gives each request's tokens before it and in it."""
        for request in finished:
            self.forget(request)
        loads, self._loads = self._loads, []
        saves = [self._saved(request, before, new, block_ids) for request, (before, new) in scheduled.items()]
        return Orders(loads, [save for save in saves if save is not None])

    def forget(self, request: str) -> None:
        self._found.pop(request, None)
        self._tracked.pop(request, None)

    def _saved(
        self, request: str, before_tokens: int, new_tokens: int, block_ids: Callable[[str], Sequence[int]]
    ) -> SaveBlocks | None:
        tracked = self._tracked.get(request)
        if tracked is None:
            return None
        start = min(tracked.done, before_tokens // self._block_tokens)  # a load that failed is computed, and stored
        end = min((before_tokens + new_tokens) // self._block_tokens, len(tracked.hashes))
        tracked.done = max(start, end)
        if end <= start:
            return None
        return SaveBlocks(b"".join(tracked.hashes[start:end]), tuple(block_ids(request)[start:end]), start)

    def _loads_of(self, request: str) -> int:
        tracked = self._tracked.get(request)
        return tracked.loads if tracked is not None else 0

    def _run(self, hashes: Sequence[bytes], start: int) -> int:
        """Leading run of `hashes` from `start` on."""
        digests = b"".join(hashes[start:])
        if not digests or len(digests) != DIGEST_BYTES * (len(hashes) - start):
            return 0
        return self._look(digests)
