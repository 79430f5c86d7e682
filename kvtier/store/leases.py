"""Read leases: while one runs, the bytes it covers stay where they are.

A lease belongs to an owner (a connection) and ends by release, by its deadline, or with its owner. Renewal moves the deadline
of a lease that still runs; one that has ended cannot be revived, because its bytes may have gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from kvtier.store.page import Page
from kvtier.store.run import Run

Held = Page | Run

_SLACK = 64


class Lease(msgspec.Struct):
    id: int
    owner: int
    held: Sequence[Held]  # in the order of the keys that it was asked for with
    granted_ms: float
    deadline_ms: float

    @property
    def covered_bytes(self) -> int:
        return sum(held.length * len(held) if isinstance(held, Run) else held.length for held in self.held)


class Leases:
    """All running leases of a node. Does not count holds: the caller does, for what is handed back."""

    def __init__(self) -> None:
        self._running: dict[int, Lease] = {}
        self._of_owner: dict[int, dict[int, Lease]] = {}
        self._deadlines: list[tuple[float, int]] = []  # may be early for a renewed lease; then it is looked at again
        self._next = 1

    def __len__(self) -> int:
        return len(self._running)

    def grant(self, owner: int, held: Sequence[Held], now_ms: float, deadline_ms: float) -> Lease:
        lease = Lease(self._next, owner, held, now_ms, deadline_ms)
        self._next += 1
        self._running[lease.id] = lease
        self._of_owner.setdefault(owner, {})[lease.id] = lease
        heappush(self._deadlines, (deadline_ms, lease.id))
        if len(self._deadlines) > 2 * len(self._running) + _SLACK:
            self._deadlines = sorted((lease.deadline_ms, lease.id) for lease in self._running.values())
        return lease

    def get(self, lease_id: int, owner: int) -> Lease | None:
        """The owner's running lease of that number."""
        return self._of_owner.get(owner, {}).get(lease_id)

    def renew(self, lease_id: int, owner: int, deadline_ms: float) -> bool:
        lease = self.get(lease_id, owner)
        if lease is None:
            return False
        lease.deadline_ms = max(lease.deadline_ms, deadline_ms)
        return True

    def end(self, lease_id: int, owner: int) -> Lease | None:
        """End a lease; None if it has ended already."""
        lease = self.get(lease_id, owner)
        if lease is not None:
            self._end(lease)
        return lease

    def end_owner(self, owner: int) -> list[Held]:
        """End all of an owner's leases."""
        return [held for lease in list(self._of_owner.get(owner, {}).values()) for held in self._end(lease)]

    def end_expired(self, now_ms: float) -> list[Lease]:
        """End what has run out."""
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            lease = self._running.get(heappop(self._deadlines)[1])
            if lease is None:
                continue
            if lease.deadline_ms > now_ms:
                heappush(self._deadlines, (lease.deadline_ms, lease.id))
                continue
            self._end(lease)
            expired.append(lease)
        return expired

    def _end(self, lease: Lease) -> Sequence[Held]:
        del self._running[lease.id]
        owned = self._of_owner[lease.owner]
        del owned[lease.id]
        if not owned:
            del self._of_owner[lease.owner]
        return lease.held
