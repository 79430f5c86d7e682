"""Which source holds which block in which tier, in memory and bounded.

One integer mask a hash (see `sources` for its layout), shared between hashes with equal holders, in shards by the hash's low
bits: each shard is small, so that a dictionary's growth, an eviction or a step of a sweep never stalls the event loop. The same
structure with 64-bit message digests for hashes is the lineage index.

What engines report is counted, because an engine may store a hash twice and remove it once. What the gateway assumes of a turn
it has just routed lies in planes of its own: a report replaces the assumption, `refute` takes it back. Eviction is a clock hand
a shard: a hash matched since the hand last passed gets another round, so shared prefixes outlive one-off tails.
The index knows neither wires nor messages; `feed` decides what may be applied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count, islice, pairwise
from operator import is_not

from costmodel.values import Tier, WorkerKey
from kvtier.index.churn import Churn, Counts
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.layout import Home, Layout
from kvtier.index.match import Walk, any_plane, bits, full_plane
from kvtier.index.runs import Match
from kvtier.index.source_key import SourceKey
from kvtier.index.sources import TIERS, TOUCHED, Sources

SHARDS = 256
_SHARD_BITS = SHARDS - 1
_INTERN_LIMIT = 65_536
_LOOK_AHEAD = 256  # blocks whose masks are got before it is known whether the walk goes so far
_KEY_BYTES = 48  # a 64-bit int object as the allocator rounds it


class BlockIndex:
    """A projection of every source's events. One thread; every call is short. Times are the caller's clock in ms."""

    def __init__(self, max_entries: int = 1_000_000, max_sources: int = 64) -> None:
        if max_entries < SHARDS:
            raise ValueError(f"max_entries must be at least {SHARDS}, not {max_entries}")
        self._shard_entries = max_entries // SHARDS
        self._sources = Sources(max_sources)
        self._churn = Churn()
        self._shards: tuple[dict[int, int], ...] = tuple({} for _ in range(SHARDS))
        self._gets = tuple(shard.get for shard in self._shards)
        self._interned: dict[int, int] = {}
        self._repeats: dict[int, dict[int, int]] = {}  # mask bit -> hash -> times stored beyond the first
        self._sweeping = 0  # source bits that the running sweep removes
        self._sweep_shard = 0
        self.evicted = 0

    def apply(self, source: SourceKey, event: BlockEvent, now_ms: float) -> None:
        """Project one event. Raises `SourceLimit` for a source beyond the cap."""
        self._churn.count(source, event)
        if isinstance(event, BlocksStored):
            self._store(source, event.hashes, event.tier)
        elif isinstance(event, BlocksRemoved):
            self._remove(source, event.hashes, event.tier)
        elif isinstance(event, AllCleared):
            self.clear(source)
        if source in self._sources:
            self._sources.heard(source, now_ms)

    def assume(self, source: SourceKey, hashes: Iterable[int], tier: Tier, now_ms: float) -> None:
        """Predict on route: count these blocks as held until a report replaces that or `refute` takes it back."""
        flag = self._flag(self._bit(source), tier, assumed=True)
        for block in hashes:
            shard = self._shards[block & _SHARD_BITS]
            self._put(shard, block, self._intern(shard.get(block, 0) | flag))
        self._sources.heard(source, now_ms)

    def refute(self, source: SourceKey, hashes: Iterable[int]) -> None:
        """Take assumptions back; what the source itself reported stays."""
        bit = self._sources.bit(source)
        if bit is not None:
            flags = self._flags(bit, assumed=True)
            for block in hashes:
                self._unset(block, flags)

    def match(self, hashes: Sequence[int], now_ms: float, *, alone: bool = False) -> dict[WorkerKey, Match]:
        """Leading runs, in blocks, of every worker that could restore at least the first block.

        A trusted worker restores what it holds, one that is attached to the pool also what a trusted node holds; `alone`: but
        for what somebody would have to bring near.
        """
        layout = self._sources.layout
        if not (layout.workers or layout.unheard):
            return {}
        walk = Walk(layout, lambda block: self._mask(hashes[block]), len(hashes), alone=alone)
        for block, mask in self._changes(hashes):
            walk.step(block, mask)
            if not walk.alive:
                return self._matches(layout, walk, block, now_ms)
        return self._matches(layout, walk, len(hashes), now_ms)

    def _changes(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Each block whose mask is another than that of the block before, with its mask. Those that were passed are touched."""
        gets = self._gets
        before = -1  # no mask
        for start in range(0, len(hashes), _LOOK_AHEAD):
            masks = [gets[hashed & _SHARD_BITS](hashed, 0) for hashed in hashes[start : start + _LOOK_AHEAD]]
            changes = [*compress(count(), map(is_not, masks, (None, *masks))), len(masks)]
            for block, end in pairwise(changes):
                mask = masks[block]
                if mask != before:
                    yield start + block, mask
                    before = mask
                if mask and not mask & TOUCHED:
                    self._touch(hashes[start + block : start + end], mask)

    def _matches(self, layout: Layout, walk: Walk, end: int, now_ms: float) -> dict[WorkerKey, Match]:
        found = {layout.worker(bit): runs for bit, runs in walk.finish(end)}
        for worker in layout.unheard:
            home = walk.home(worker)
            if home is not None and (runs := walk.pool.leading(home)):
                found[worker] = runs
        sources = self._sources
        node_ages: dict[str, float] = {}
        matches = {}
        for worker, runs in found.items():
            if not runs[0].source or "" in (read_from := {run.source for run in runs}):
                age_ms = sources.age_ms(worker, now_ms)
            else:
                node_ages = node_ages or sources.node_ages_ms(now_ms)
                age_ms = min(node_ages[node] for node in read_from)
            matches[worker] = Match(tuple(runs), age_ms)
        return matches

    def leading(self, hashes: Sequence[int]) -> dict[WorkerKey, int]:
        """How many leading blocks every trusted worker holds, in whatever tier; workers without the first are absent.

        For hashes of one chain: who holds a block holds those before it. A hole that an eviction left may be overlooked.
        """
        sources = self._sources
        layout = sources.layout
        alive = layout.workers
        counts: dict[WorkerKey, int] = {}
        block, size = 0, len(hashes)
        while alive and block < size:
            hashed = hashes[block]
            mask = self._gets[hashed & _SHARD_BITS](hashed, 0)
            if mask and not mask & TOUCHED:
                mask = self._touch((hashed,), mask)
            lost = alive & ~any_plane(sources.stride, mask)
            if lost:
                if block:
                    for bit in bits(lost):
                        counts[layout.worker(bit)] = block
                alive ^= lost
                if not alive:
                    break
            block = self._run_end(hashes, block, mask)
        for bit in bits(alive) if size else ():
            counts[layout.worker(bit)] = size
        return counts

    def _run_end(self, hashes: Sequence[int], start: int, mask: int) -> int:
        """The first block after `start` with other holders. These only dwindle along a chain: equal ends, equal middles."""
        gets = self._gets
        low, high = start, len(hashes)
        step = 1
        while low + 1 < high:
            probe = min(low + step, high - 1) if step else (low + high) // 2
            hashed = hashes[probe]
            if gets[hashed & _SHARD_BITS](hashed, 0) | TOUCHED == mask:
                low = probe
                step *= 2
            else:
                high = probe
                step = 0  # found between two blocks: halve from here on
        return high

    def churn(self, source: SourceKey, tier: Tier = Tier.L1) -> Counts | None:
        """What the source has told of a tier so far; None where nothing."""
        return self._churn.of(source, tier)

    def age_ms(self, source: SourceKey, now_ms: float) -> float:
        """Since a known source last spoke."""
        return self._sources.age_ms(source, now_ms)

    def confirm(self, source: SourceKey, now_ms: float) -> None:
        """The source has said that nothing has changed."""
        if source in self._sources:
            self._sources.heard(source, now_ms)

    def clear(self, source: SourceKey) -> None:
        """Empty a source at once; the memory comes back as `sweep` is called."""
        bit = self._sources.retire(source)
        if bit is not None:
            for flag in (*self._planes(bit, assumed=False), *self._planes(bit, assumed=True)):
                self._repeats.pop(flag, None)

    def drop_source(self, source: SourceKey) -> None:
        """Empty a source that has left for good."""
        self.clear(source)
        self._sources.forget(source)
        self._churn.forget(source)
        if isinstance(source, WorkerKey):
            self.detach(source)

    def set_trust(self, source: SourceKey, trusted: bool) -> None:
        """A distrusted source keeps its blocks and takes events, but nothing of it is matched."""
        self._sources.set_trust(source, trusted)

    def attach(self, worker: WorkerKey, node: str | None, *, remote: bool = True, brought: bool = False) -> None:
        """`worker` can restore from the pool: from `node`, which it is on (None = on none), and from others as `Home` says."""
        self._sources.attach(worker, Home(node, remote, brought))

    def detach(self, worker: WorkerKey) -> None:
        """`worker` no longer reaches the pool."""
        self._sources.detach(worker)

    def speaks_for(self, source: SourceKey) -> bool:
        """Whether silence about a block means that `source` does not hold it: its events have come and may be believed."""
        return self._sources.is_trusted(source)

    def sweep(self, budget: int) -> bool:
        """Remove emptied sources from up to about `budget` entries (at least one shard); True while there is more to do."""
        while budget > 0 and self._begin_sweep():
            shard = self._shards[self._sweep_shard]
            self._clean(shard, ~full_plane(self._sources.stride, self._sweeping))
            budget -= max(1, len(shard))
            self._sweep_shard += 1
            if self._sweep_shard == SHARDS:
                self._sources.release(self._sweeping)
                self._sweeping = 0
        return bool(self._sources.retired)

    def holds(self, source: SourceKey, block: int, tier: Tier) -> bool:
        """Whether the source itself has reported it, believed or not."""
        bit = self._sources.bit(source)
        return bit is not None and bool(self._mask(block) & self._flag(bit, tier, assumed=False))

    def holders(self, block: int) -> list[tuple[SourceKey, Tier]]:
        """Everyone believed who has the block, with every tier that has it."""
        layout = self._sources.layout
        mask = self._mask(block)
        found = []
        for tier in TIERS:
            holders = layout.plane(mask, tier)
            found += [(self._sources.key(bit), tier) for bit in bits(holders) if bit in layout.flags]
        return found

    def holdings(self, source: SourceKey) -> Iterator[list[tuple[int, int]]]:
        """All that a source holds, a shard at a time: (block, planes); 0 to 3 are reported L1 to L4, 4 to 7 assumed."""
        for shard in self._shards:
            bit = self._sources.bit(source)  # it may be emptied between two shards
            if bit is None:
                return
            flags = [*self._planes(bit, assumed=False), *self._planes(bit, assumed=True)]
            anywhere = sum(flags)
            held = ((block, mask) for block, mask in shard.items() if mask & anywhere)
            yield [(block, sum(1 << plane for plane, flag in enumerate(flags) if mask & flag)) for block, mask in held]

    @property
    def entries(self) -> int:
        """Distinct hashes held."""
        return sum(map(len, self._shards))

    @property
    def sources(self) -> tuple[SourceKey, ...]:
        return self._sources.keys()

    def memory_bytes(self) -> int:
        """An estimate: tables and keys; masks are shared and few."""
        tables = sum(map(sys.getsizeof, self._shards)) + sys.getsizeof(self._interned)
        repeats = sum(sys.getsizeof(counts) for counts in self._repeats.values())
        return tables + repeats + self.entries * _KEY_BYTES

    def _bit(self, source: SourceKey) -> int:
        bit = self._sources.bit(source)
        if bit is not None:
            return bit
        if self._sources.exhausted:  # more sources emptied than there are spare bits since the last sweep: finish it now
            while self.sweep(self._shard_entries):
                pass
        return self._sources.add(source)

    def _planes(self, bit: int, *, assumed: bool) -> tuple[int, ...]:
        return tuple(self._flag(bit, tier, assumed=assumed) for tier in TIERS)

    def _flag(self, bit: int, tier: Tier, *, assumed: bool) -> int:
        plane = tier - 1 + (len(TIERS) if assumed else 0)
        return 1 << 1 + plane * self._sources.stride + bit

    def _flags(self, bit: int, *, assumed: bool) -> int:
        flags = 0
        for flag in self._planes(bit, assumed=assumed):
            flags |= flag
        return flags

    def _store(self, source: SourceKey, hashes: Iterable[int], tier: Tier) -> None:
        bit = self._bit(source)
        flag = self._flag(bit, tier, assumed=False)
        keep = ~self._flags(bit, assumed=True)
        before, after = 0, self._intern(flag)  # neighbours mostly have equal masks
        for block in hashes:
            shard = self._shards[block & _SHARD_BITS]
            mask = shard.get(block, 0)
            if mask != before:
                before, after = mask, self._intern(mask & keep | flag)
            if mask and mask & flag:
                counts = self._repeats.setdefault(flag, {})
                counts[block] = counts.get(block, 0) + 1
            self._put(shard, block, after)

    def _remove(self, source: SourceKey, hashes: Iterable[int], tier: Tier | None) -> None:
        bit = self._sources.bit(source)
        if bit is None:
            return
        tiers = TIERS if tier is None else (tier,)
        flags = [self._flag(bit, each, assumed=False) for each in tiers]
        assumed = self._flags(bit, assumed=True) if tier is None else self._flag(bit, tier, assumed=True)
        for block in hashes:
            gone = assumed
            for flag in flags:
                if not self._repeated(flag, block):
                    gone |= flag
            self._unset(block, gone)

    def _repeated(self, flag: int, block: int) -> bool:
        """Whether a removal only undoes a repeated store; counts it down."""
        counts = self._repeats.get(flag)
        if counts is None or block not in counts:
            return False
        if counts[block] > 1:
            counts[block] -= 1
        else:
            del counts[block]
        return True

    def _put(self, shard: dict[int, int], block: int, mask: int) -> None:
        if len(shard) >= self._shard_entries and block not in shard:
            self._evict(shard)
        shard[block] = mask

    def _unset(self, block: int, flags: int) -> None:
        shard = self._shards[block & _SHARD_BITS]
        mask = shard.get(block)
        if mask is None or not mask & flags:
            return
        mask &= ~flags
        if mask & ~TOUCHED:
            shard[block] = self._intern(mask)
        else:
            del shard[block]

    def _mask(self, block: int) -> int:
        return self._gets[block & _SHARD_BITS](block, 0)

    def _touch(self, blocks: Iterable[int], mask: int) -> int:
        """`mask` is theirs."""
        mask = self._intern(mask | TOUCHED)
        for block in blocks:
            self._shards[block & _SHARD_BITS][block] = mask
        return mask

    def _intern(self, mask: int) -> int:
        interned = self._interned
        if len(interned) >= _INTERN_LIMIT:
            interned.clear()
        return interned.setdefault(mask, mask)

    def _evict(self, shard: dict[int, int]) -> None:
        """Free about a sixteenth of the shard, oldest first; what was matched since the hand last passed goes to the back."""
        wanted = max(1, self._shard_entries // 16)
        while wanted > 0:
            for block, mask in list(islice(shard.items(), wanted)):
                del shard[block]
                if mask & TOUCHED:
                    shard[block] = self._intern(mask & ~TOUCHED)
                    continue
                wanted -= 1
                self.evicted += 1
                for counts in self._repeats.values():
                    counts.pop(block, None)

    def _begin_sweep(self) -> bool:
        """Whether there is a sweep to go on with; sources retired while one runs wait for the next."""
        if not self._sweeping and self._sources.retired:
            self._sweeping = self._sources.retired
            self._sweep_shard = 0
        return bool(self._sweeping)

    def _clean(self, shard: dict[int, int], keep: int) -> None:
        cleaned: dict[int, int] = {}  # mask before -> after, for the few distinct masks of a shard
        dead = []
        for block, mask in shard.items():
            after = cleaned.get(mask)
            if after is None:
                after = cleaned[mask] = self._intern(mask & keep)
            if after & ~TOUCHED == 0:
                dead.append(block)
            elif after is not mask:
                shard[block] = after
        for block in dead:
            del shard[block]
