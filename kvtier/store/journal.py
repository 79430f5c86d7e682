"""What a node says about its pages, numbered: the source of the index's picture of it.

One journal for every whole page space, because the same tokens have the same digests under every model. Batches count from 0
under an epoch that changes with every start of the agent; a reader that fell behind what is kept gets a snapshot in place of
the batches. A page that is split over ranks is announced when all its shards lie in a tier, and withdrawn with the first that
leaves: what is announced can be restored. (A page whose shards lie in different tiers is not announced: a subset of the truth.)
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

import msgspec

from costmodel.values import Tier
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.node_feed import NumberedBatch
from kvtier.page.key import PageKey, PageKeys, digest_of, space_of
from kvtier.page.space import PageSpace, space_digest

MAX_EVENT_HASHES = 4096
MAX_KEPT_HASHES = 262_144


class Replay(msgspec.Struct, frozen=True):
    """Batches from the asked number on; with `snapshot` the first one holds all there is and replaces what came before."""

    batches: tuple[NumberedBatch, ...]
    snapshot: bool = False


class _Run:
    """An event that still grows."""

    __slots__ = ("digests", "stored", "tier")

    def __init__(self, stored: bool, tier: Tier) -> None:
        self.stored = stored
        self.tier = tier
        self.digests: list[bytes] = []


class Journal:
    """Everything said about one whole space. Bounded by the hashes it keeps."""

    def __init__(self, space: PageSpace) -> None:
        self.space = space
        self.next_seq = 0
        self._all_shards = (1 << space.shard.count) - 1
        self._shards: tuple[dict[bytes, int], ...] = tuple({} for _ in Tier)  # by tier: digest -> shards there
        self._kept: deque[NumberedBatch] = deque()
        self._kept_hashes = 0
        self._open: list[_Run] = []
        self._open_hashes = 0

    def stored(self, digests: Iterable[bytes], shard: int, tier: Tier) -> None:
        shards, all_shards, bit = self._shards[tier - 1], self._all_shards, 1 << shard
        whole = []
        for digest in digests:
            before = shards.get(digest, 0)
            after = shards[digest] = before | bit
            if after == all_shards != before:
                whole.append(digest)
        self._say(True, tier, whole)

    def removed(self, digests: Iterable[bytes], shard: int, tier: Tier) -> None:
        shards, all_shards, others = self._shards[tier - 1], self._all_shards, ~(1 << shard)
        broken = []
        for digest in digests:
            before = shards.pop(digest, 0)
            after = before & others
            if after:
                shards[digest] = after
            if before == all_shards != after:
                broken.append(digest)
        self._say(False, tier, broken)

    def since(self, seq: int) -> Replay:
        """All batches from `seq` on, or a snapshot where they are no longer kept (or never were: another epoch's number)."""
        self._close()
        oldest = self._kept[0].seq if self._kept else self.next_seq
        if seq > self.next_seq or seq < oldest:
            return self._snapshot()
        wanted = list(takewhile(lambda batch: batch.seq >= seq, reversed(self._kept)))
        return Replay(tuple(reversed(wanted)))

    def _say(self, stored: bool, tier: Tier, digests: Sequence[bytes]) -> None:
        while digests:
            last = self._open[-1] if self._open else None
            if last is None or (last.stored, last.tier) != (stored, tier):
                last = _Run(stored, tier)
                self._open.append(last)
            fitting = digests[: MAX_EVENT_HASHES - self._open_hashes]
            last.digests += fitting
            self._open_hashes += len(fitting)
            if self._open_hashes >= MAX_EVENT_HASHES:
                self._close()
            digests = digests[len(fitting) :]

    def _close(self) -> None:
        if not self._open:
            return
        events = tuple(self._event(run.stored, run.tier, run.digests) for run in self._open)
        self._kept.append(NumberedBatch(self.next_seq, events))
        self.next_seq += 1
        self._kept_hashes += self._open_hashes
        self._open = []
        self._open_hashes = 0
        while self._kept_hashes > MAX_KEPT_HASHES:
            self._kept_hashes -= sum(map(_hash_count, self._kept.popleft().events))

    def _snapshot(self) -> Replay:
        """As the newest batch, of which it is the sum; before any batch there is nothing to sum up."""
        if not self.next_seq:
            return Replay(())
        events = tuple(
            self._event(True, tier, digests)
            for tier in Tier
            for digests in _chunks(digest for digest, shards in self._shards[tier - 1].items() if shards == self._all_shards)
        )
        return Replay((NumberedBatch(self.next_seq - 1, events),), snapshot=True)

    def _event(self, stored: bool, tier: Tier, digests: Iterable[bytes]) -> BlockEvent:
        hashes = event_ids(digests)
        if stored:
            return BlocksStored(hashes, None, tier, self.space.page_tokens)
        return BlocksRemoved(hashes, tier)


class Journals:
    """The journals of all whole spaces that a node has met, under one epoch.

    What is said is put down when somebody wants to read it, or when there is time: a put does not wait for it.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._said: list[tuple[bool, Tier, Sequence[PageKey]]] = []  # not put down yet
        self._journals: dict[bytes, Journal] = {}
        self._spaces: dict[bytes, PageSpace] = {}
        self._of_space: dict[bytes, tuple[Journal, int]] = {}  # space digest -> journal, shard number

    def meet(self, space: PageSpace) -> bytes:
        """Make a space known; its digest. Pages of unknown spaces cannot be stored."""
        digest = space_digest(space)
        if digest not in self._of_space:
            whole = space.whole
            journal = self._journals.setdefault(space_digest(whole), Journal(whole))
            self._of_space[digest] = (journal, space.shard.index)
            self._spaces[digest] = space
        return digest

    def knows(self, space: bytes) -> bool:
        return space in self._of_space

    def space(self, digest: bytes) -> PageSpace:
        """A space that was met."""
        return self._spaces[digest]

    def spaces(self) -> list[bytes]:
        """Digests of all that were met."""
        return list(self._spaces)

    def whole_spaces(self) -> dict[bytes, Journal]:
        """By digest of the whole space, complete."""
        self.put_down()
        return self._journals

    def page_tokens(self, key: PageKey) -> int:
        return self._of_space[space_of(key)][0].space.page_tokens

    def stored(self, keys: Sequence[PageKey], tier: Tier) -> None:
        self._said.append((True, tier, keys))

    def removed(self, keys: Sequence[PageKey], tier: Tier) -> None:
        self._said.append((False, tier, keys))

    def put_down(self) -> None:
        """What was said since the last time."""
        said, self._said = self._said, []
        for stored, tier, keys in said:
            if isinstance(keys, PageKeys):
                self._put_down(stored, tier, keys.space, keys.each_digest())
                continue
            for space, group in groupby(keys, space_of):
                self._put_down(stored, tier, space, map(digest_of, group))

    def _put_down(self, stored: bool, tier: Tier, space: bytes, digests: Iterable[bytes]) -> None:
        journal, shard = self._of_space[space]
        (journal.stored if stored else journal.removed)(digests, shard, tier)


def event_id(digest: bytes) -> int:
    """What an engine's events call the block of this page (equal chains: without salts)."""
    return int.from_bytes(digest[:8], "big", signed=True)


def event_ids(digests: Iterable[bytes]) -> tuple[int, ...]:
    """`event_id` of many."""
    ids = array("q", b"".join([digest[:8] for digest in digests]))
    if sys.byteorder == "little":
        ids.byteswap()
    return tuple(ids)


def _hash_count(event: BlockEvent) -> int:
    return len(event.hashes) if isinstance(event, BlocksStored | BlocksRemoved) else 0


def _chunks(digests: Iterable[bytes]) -> Iterable[list[bytes]]:
    chunk: list[bytes] = []
    for digest in digests:
        chunk.append(digest)
        if len(chunk) == MAX_EVENT_HASHES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
