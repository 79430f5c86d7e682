"""Which pages deserve another copy on another node."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvtier.page.key import PageKey
from kvtier.settings.ranges import Amount, Count, Size


class Candidate(msgspec.Struct, frozen=True):
    """A page, its decayed hits now, and on how many nodes it lies."""

    key: PageKey
    hits: float
    length: int
    copies: int = 1


class NoReplicas(msgspec.Struct, frozen=True, tag="none", tag_field="policy", forbid_unknown_fields=True):
    def choose(self, candidates: Iterable[Candidate]) -> list[PageKey]:
        return []


class HotReplicas(msgspec.Struct, frozen=True, tag="hot", tag_field="policy", forbid_unknown_fields=True):
    """The hottest pages under a byte budget for each round, up to `copies` copies."""

    min_hits: Amount = 4.0
    copies: Count = 2
    budget_bytes: Size = 256 << 20

    def choose(self, candidates: Iterable[Candidate]) -> list[PageKey]:
        wanted = [each for each in candidates if each.hits >= self.min_hits and each.copies < self.copies]
        wanted.sort(key=lambda each: (-each.hits, each.key))
        chosen = []
        left = self.budget_bytes
        for each in wanted:
            if each.length > left:
                break
            left -= each.length
            chosen.append(each.key)
        return chosen


ReplicationPolicy = NoReplicas | HotReplicas
