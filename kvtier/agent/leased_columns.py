"""What a lease covers, as the columns of an answer: of a run as they are, of pages one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvtier.page.checksum import bound_checksums
from kvtier.page.key import digest_of
from kvtier.page.status import Status
from kvtier.store.answers import Acquired
from kvtier.store.leases import Held
from kvtier.store.run import Run
from kvtier.wire import messages as wire


class _Columns:
    def __init__(self) -> None:
        self.offsets, self.lengths, self.generations, self.depths = wire.Column(), wire.Column(), wire.Column(), wire.Column()
        self.checksums, self.kinds = bytearray(), bytearray()

    def add(self, held: Iterable[Held]) -> None:
        for each in held:
            if isinstance(each, Run):
                self._add_run(each)
                continue
            self.offsets.append(each.offset)
            self.lengths.append(each.length)
            self.generations.append(each.generation)
            self.depths.append(each.depth)
            self.checksums += each.checksum
            self.kinds.append(each.kind)

    def _add_run(self, run: Run) -> None:
        self.offsets.extend(run.offsets)
        self.lengths.extend(wire.Column((run.length,)) * len(run))
        self.generations.extend(run.generations)
        self.depths.extend(run.depths)
        self.checksums += run.checksums
        self.kinds += bytes((run.kind,)) * len(run)


def acquired_message(acquired: Acquired, *, bound: bool) -> wire.Acquired:
    """`bound` as in `wire.Acquire`."""
    columns = _Columns()
    columns.add(acquired.held)
    checksums = bytes(columns.checksums)
    if bound:
        checksums = bound_checksums(checksums, list(_digests(acquired.held)))
    return wire.Acquired(
        acquired.lease_id,
        packed_statuses(acquired.statuses),
        columns.offsets,
        columns.lengths,
        columns.generations,
        checksums,
        bytes(columns.kinds),
        columns.depths,
        acquired.moved,
        acquired.retry_after_ms,
    )


def _digests(held: Iterable[Held]) -> Iterator[bytes]:
    for each in held:
        yield from each.keys.each_digest() if isinstance(each, Run) else (digest_of(each.key),)


def packed_statuses(statuses: Sequence[Status]) -> bytes:
    """A byte each."""
    return bytes(len(statuses)) if statuses.count(Status.OK) == len(statuses) else bytes(statuses)
