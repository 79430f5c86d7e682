"""How far a model's derived prompts may be trusted, in one dialect: exact deltas, whole tokenisation, or not at all.

The engine's counts and whole tokenisations are the evidence. A thread whose prompt was wrong goes down one level, and after a
few such threads the model does. Pure arithmetic over what it is told; it knows no prompts.
"""

from __future__ import annotations

from array import array
from enum import StrEnum

from costmodel.values import WorkerKey
from router.body.recency import RecentMap

_PATIENCE = 3  # wrong prompts until the model goes down a level
_FORGIVEN_AFTER = 1000  # right ones that make up for a wrong one
_UNSEEN_PATIENCE = 8  # turns none of whose blocks the engine's events name, while none ever was
_REFUSED_PATIENCE = 8  # prompts that cannot be derived though the engine took them, while none ever agreed
_UNFORWARDED_EVERY = 64  # where nothing else is verified
_THREADS = 16_384


class Level(StrEnum):
    EXACT = "exact"  # what is known of a thread is gone on with
    WHOLE = "whole"  # every prompt is tokenised anew
    LINEAGE = "lineage"  # prompts are not derived


_BELOW = {Level.EXACT: Level.WHOLE, Level.WHOLE: Level.LINEAGE, Level.LINEAGE: Level.LINEAGE}
_RANK = {level: rank for rank, level in enumerate(Level)}


class Trust:
    """Of one model in one dialect. `agreed`, `mismatches`: counts of the engine that were ours, and prompts found wrong by
    any means; `verified`: whole tokenisations that were equal; `reason`: of the last step down."""

    def __init__(self, verify_every: int) -> None:
        self._verify_every = verify_every
        self.level = Level.EXACT
        self.agreed = 0
        self.mismatches = 0
        self.verified = 0
        self.reason = ""
        self.computed: tuple[WorkerKey, array[int]] | None = None  # who computed the last prompt, and its first block
        self._strikes = 0
        self._since_strike = 0
        self._until_verified = 0
        self._refused = 0
        self._unseen = 0
        self._seen = False
        self._forwarded = 0
        self._threads: RecentMap[str, Level] = RecentMap(_THREADS)
        self._proven: RecentMap[str, bool] = RecentMap(_THREADS)

    def level_of(self, thread: str) -> Level:
        own = self._threads.get(thread)
        return self.level if own is None or _RANK[own] < _RANK[self.level] else own

    def proven(self, thread: str) -> bool:
        """Whether the engine itself has counted this thread's prompt as we did, and the model has been verified."""
        return self.verified > 0 and self._proven.get(thread) is True

    def forwards(self, thread: str) -> bool:
        """Whether the engine may be given our ids for this turn. One turn in `verify_every` goes without, so that the engine
        goes on counting for itself."""
        if not self.proven(thread):
            return False
        self._forwarded += 1
        return self._forwarded % (self._verify_every or _UNFORWARDED_EVERY) != 0

    def due(self) -> bool:
        """Whether the prompt that just agreed is one to be verified: a model's first, and one in `verify_every`."""
        if self._verify_every == 0:
            return False
        self._until_verified -= 1
        if self._until_verified > 0:
            return False
        self._until_verified = self._verify_every
        return True

    def postpone(self) -> None:
        """The verification that was due could not be made: the next prompt is due."""
        self._until_verified = 0

    def agree(self, thread: str) -> None:
        """The engine tokenised this prompt itself and counted as we did."""
        self.agreed += 1
        self._proven.put(thread, True)
        self._since_strike += 1
        if self._since_strike >= _FORGIVEN_AFTER and self._strikes:
            self._strikes -= 1
            self._since_strike = 0

    def wrong(self, thread: str, used: Level, reason: str) -> None:
        """A prompt made at level `used` was not the engine's."""
        self.mismatches += 1
        self._strikes += 1
        self._since_strike = 0
        self._proven.put(thread, False)
        self._threads.put(thread, _BELOW[used])
        if self._strikes >= _PATIENCE:
            self._strikes = 0
            self._step_down(_BELOW[self.level], reason)

    def refused(self, thread: str, reason: str) -> None:
        """The engine took a body of which no prompt could be derived. Whatever it was stays in the thread's history. The model
        is only doubted while none of its prompts ever agreed: one client's odd bodies must not take the others' away."""
        self._threads.put(thread, Level.LINEAGE)
        self._refused += 1
        if self._refused >= _REFUSED_PATIENCE and not self.agreed:
            self._step_down(Level.LINEAGE, reason)

    def looked_for(self, *, seen: bool) -> None:
        """Whether the engine's events named the first block of a prompt that it has just computed. If they never do, ids are
        wrong though counts are right: another hash seed, an adapter."""
        self._seen |= seen
        self._unseen = 0 if seen else self._unseen + 1
        if not self._seen and self._unseen >= _UNSEEN_PATIENCE:
            self._step_down(Level.LINEAGE, f"none of the engine's KV events names our blocks after {self._unseen} turns")

    def _step_down(self, level: Level, reason: str) -> None:
        self.level = level
        self.reason = reason
