"""The index store in Redis: one command a shard, all shards at once, nothing cached that could be wrong.

Reading a prompt is one MGET a shard and one HGETALL for the sources, side by side. Writing is one script a shard, which also
says whether the shard still is the one that was written to before (`born`): a server that was flushed or replaced shows by it.
Where Redis does not answer, `StoreUnavailable` says so, and the caller goes on without.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.layout import Home, Layout
from kvtier.index.match import Walk
from kvtier.index.runs import Match
from kvtier.index.source_key import NodeKey, SourceKey
from kvtier.shared_index.holdings import (
    ENTRY_BYTES,
    LIFE_BYTES,
    REFUTED,
    Change,
    Keyspace,
    SourceRow,
    assumed,
    entries,
    read_row,
    read_source,
    removed,
    spell_change,
    spell_row,
    spell_source,
    stored,
)
from kvtier.shared_index.index_store import StoreUnavailable
from kvtier.shared_index.redis_link import RedisLink, RedisSettings

_WRITES_AT_ONCE = 1000
_WRITE_S = 5.0
_HOLDERS_KEPT = 128  # of one block; who has not been heard of for longest goes first

_WRITE = f"""
local born = redis.call('GET', KEYS[1])
if not born then
  born = ARGV[1]
  redis.call('SET', KEYS[1], born)
end
for i = 2, #KEYS do
  local change = ARGV[i + 1]
  local life = string.sub(change, 1, {LIFE_BYTES})
  local keep, put = string.byte(change, {LIFE_BYTES + 1}, {LIFE_BYTES + 2})
  local rest, tiers = redis.call('GET', KEYS[i]) or '', 0
  for at = 1, #rest, {ENTRY_BYTES} do
    if string.sub(rest, at, at + {LIFE_BYTES - 1}) == life then
      tiers = string.byte(rest, at + {LIFE_BYTES})
      rest = string.sub(rest, 1, at - 1) .. string.sub(rest, at + {ENTRY_BYTES})
      break
    end
  end
  tiers = bit.bor(bit.band(tiers, keep), put)
  if tiers ~= 0 then
    rest = string.sub(rest, -{ENTRY_BYTES * (_HOLDERS_KEPT - 1)}) .. life .. string.char(tiers)
  end
  if rest == '' then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], rest, 'EX', ARGV[2])
  end
end
return born
"""

_NAME = """
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
else redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) end
return redis.call('HGET', KEYS[1], ARGV[1])
"""


class Lost(NamedTuple):
    """What Redis no longer has of that which was written before: it was flushed, or another server took its place."""

    shards: set[int]
    sources: set[SourceKey]


class RedisIndexStore:
    """An `IndexStore`. `random_bytes(n)` makes lives; `close` must be awaited."""

    def __init__(self, link: RedisLink, settings: RedisSettings, index: str, random_bytes: Callable[[int], bytes]) -> None:
        """`index` tells apart the indexes of one name. Raises ValueError for a number of shards that is no power of two."""
        if settings.shards < 1 or settings.shards & settings.shards - 1:
            raise ValueError(f"shards must be a power of two, not {settings.shards}")
        self.keys = Keyspace(f"{settings.name}:{index}", settings.shards)
        self._link = link
        self._deadline_s = settings.deadline_ms / 1000
        self._ttl_s = settings.ttl_s
        self._random_bytes = random_bytes
        self._homes: dict[WorkerKey, Home] = {}
        self._born: dict[int, bytes] = {}  # shard -> what it said last
        self._lost = Lost(set(), set())
        self._named: set[SourceKey] = set()  # by this user of the store

    async def apply(self, source: SourceKey, event: BlockEvent, now_ms: float) -> None:
        if isinstance(event, BlocksStored):
            await self.write({source: dict.fromkeys(event.hashes, stored(event.tier))}, now_ms)
        elif isinstance(event, BlocksRemoved):
            await self.write({source: dict.fromkeys(event.hashes, removed(event.tier))}, now_ms)
        else:
            await self.clear(source)

    async def assume(self, source: SourceKey, hashes: Iterable[int], tier: Tier, now_ms: float) -> None:
        await self.write({source: dict.fromkeys(hashes, assumed(tier))}, now_ms)

    async def refute(self, source: SourceKey, hashes: Iterable[int]) -> None:
        await self.write({source: dict.fromkeys(hashes, REFUTED)}, None)

    async def clear(self, source: SourceKey) -> None:
        rows = await self._rows()
        row = rows.get(source)
        if row is not None:
            await self._name(source, SourceRow(self._random_bytes(LIFE_BYTES), row.trusted, row.heard_ms), replace=True)

    async def drop_source(self, source: SourceKey) -> None:
        if isinstance(source, WorkerKey):
            self._homes.pop(source, None)
        self._named.discard(source)
        await self._command(0, "HDEL", self.keys.sources, spell_source(source))

    async def set_trust(self, source: SourceKey, trusted: bool) -> None:
        rows = await self._rows()
        row = rows.get(source) or SourceRow(self._random_bytes(LIFE_BYTES))
        await self._name(source, SourceRow(row.life, trusted, row.heard_ms), replace=True)

    def attach(self, worker: WorkerKey, node: str | None) -> None:
        self._homes[worker] = Home(node)

    async def match(self, hashes: Sequence[int], now_ms: float) -> dict[WorkerKey, Match]:
        """As `BlockIndex.match`. The deadline holds for all of it together."""
        async with self._deadline(self._deadline_s):
            rows, values = await asyncio.gather(self._rows(), self._read(hashes))
        view = _View(rows, self._homes)
        masks = [view.mask(value) for value in values]
        walk = Walk(view.layout, masks.__getitem__, len(masks))
        end = 0
        for end, mask in enumerate(masks):
            walk.step(end, mask)
            if not walk.alive:
                break
        else:
            end = len(masks)
        return view.matches(walk, end, now_ms)

    async def write(
        self, changes: Mapping[SourceKey, Mapping[int, Change]], heard_ms: float | None, *, every_shard: bool = False
    ) -> None:
        """Make these changes, one script a shard. `every_shard`: look at those without any, too. See `take_lost`."""
        async with self._deadline(_WRITE_S):
            rows = await self._rows()
            gone = self._named - rows.keys()
            self._lost.sources.update(gone)
            self._named -= gone
            lives = {source: await self._life(source, rows.get(source), heard_ms) for source in changes}
            by_shard: dict[int, list[tuple[int, bytes]]] = {shard: [] for shard in range(self.keys.shards) if every_shard}
            for source, blocks in changes.items():
                for block, change in blocks.items():
                    by_shard.setdefault(self.keys.shard(block), []).append((block, spell_change(lives[source], change)))
            await asyncio.gather(*(self._write_shard(shard, writes) for shard, writes in by_shard.items()))

    def take_lost(self) -> Lost:
        """What writes have found missing since this was last asked."""
        lost, self._lost = self._lost, Lost(set(), set())
        return lost

    async def close(self) -> None:
        await self._link.close()

    async def _rows(self) -> dict[SourceKey, SourceRow]:
        found = await self._command(0, "HGETALL", self.keys.sources)
        try:
            return {read_source(field): read_row(value) for field, value in found.items()}
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # another release's, or not ours at all
            raise StoreUnavailable(f"{self.keys.sources} holds a row that cannot be read: {error}") from error

    async def _life(self, source: SourceKey, row: SourceRow | None, heard_ms: float | None) -> bytes:
        if row is None:
            fresh = SourceRow(self._random_bytes(LIFE_BYTES), True, heard_ms or 0.0)
            return (await self._name(source, fresh, replace=False)).life
        if heard_ms is not None and heard_ms > row.heard_ms:
            await self._name(source, SourceRow(row.life, row.trusted, heard_ms), replace=True)
        return row.life

    async def _name(self, source: SourceKey, row: SourceRow, *, replace: bool) -> SourceRow:
        """The row that stands in the end: who names a source first decides on its life."""
        reply = await self._command(
            0, "EVAL", _NAME, 1, self.keys.sources, spell_source(source), spell_row(row), "1" if replace else "0"
        )
        self._named.add(source)
        return read_row(reply)

    async def _read(self, hashes: Sequence[int]) -> list[bytes]:
        places: dict[int, list[int]] = {}
        for place, block in enumerate(hashes):
            places.setdefault(self.keys.shard(block), []).append(place)
        keys = {shard: [self.keys.block(hashes[place]) for place in mine] for shard, mine in places.items()}
        replies = await asyncio.gather(*(self._command(shard, "MGET", *mine) for shard, mine in keys.items()))
        values = [b""] * len(hashes)
        for mine, reply in zip(places.values(), replies, strict=True):
            for place, value in zip(mine, reply, strict=True):
                values[place] = value or b""
        return values

    async def _write_shard(self, shard: int, writes: Sequence[tuple[int, bytes]]) -> None:
        for at in range(0, max(1, len(writes)), _WRITES_AT_ONCE):
            part = writes[at : at + _WRITES_AT_ONCE]
            keys = [self.keys.born(shard), *(self.keys.block(block) for block, _ in part)]
            arguments = (self._random_bytes(LIFE_BYTES), self._ttl_s, *(change for _, change in part))
            born = await self._command(shard, "EVAL", _WRITE, len(keys), *keys, *arguments)
            if self._born.setdefault(shard, born) != born:
                self._born[shard] = born
                self._lost.shards.add(shard)

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            self._link.leave_alone(f"no answer within {seconds:g} s")
            raise StoreUnavailable(self._link.fault) from error

    async def _command(self, shard: int, *parts: object) -> Any:
        return await self._link.command(shard, *parts)


class _View:
    """One moment's sources as the walk wants them, and blocks' values as masks."""

    def __init__(self, rows: Mapping[SourceKey, SourceRow], homes: Mapping[WorkerKey, Home]) -> None:
        self._rows = rows
        sources = dict(enumerate(rows))
        trusted = sum(1 << bit for bit, source in sources.items() if rows[source].trusted)
        heard = {source for source in rows if isinstance(source, WorkerKey) and rows[source].trusted}
        self.layout = Layout(max(1, len(sources)), sources, trusted, dict(homes), heard)
        self._bits = {rows[source].life: bit for bit, source in sources.items()}
        self._masks: dict[bytes, int] = {}

    def mask(self, value: bytes) -> int:
        mask = self._masks.get(value)
        if mask is None:
            mask = 0
            for life, tiers in entries(value):
                bit = self._bits.get(life)
                if bit is not None:
                    for plane in range(8):
                        if tiers >> plane & 1:
                            mask |= 1 << 1 + plane * self.layout.stride + bit
            self._masks[value] = mask
        return mask

    def matches(self, walk: Walk, end: int, now_ms: float) -> dict[WorkerKey, Match]:
        found = {self.layout.worker(bit): runs for bit, runs in walk.finish(end)}
        for worker in self.layout.unheard:
            runs = walk.pool.leading(self.layout.homes[worker])
            if runs:
                found[worker] = runs
        matches = {}
        for worker, runs in found.items():
            sources = {run.source for run in runs}
            heard_ms = self._rows[worker].heard_ms if "" in sources else self._node_heard_ms(sources)
            matches[worker] = Match(tuple(runs), max(0.0, now_ms - heard_ms))
        return matches

    def _node_heard_ms(self, nodes: set[str]) -> float:
        return max(row.heard_ms for source, row in self._rows.items() if isinstance(source, NodeKey) and source.node in nodes)
