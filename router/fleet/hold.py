"""Turns that wait at the gateway because the worker they would go to has enough to compute.

In an engine's queue a turn's worker is fixed, and the KV that it counted on may be evicted before its turn comes, most of all
where it was fetched into L2 on arrival. A turn that is held is placed anew when there is room. The engine never runs dry, and
the line moves whatever was predicted: `KEEP_TURNS` of this gateway are always let through, and what is long overdue counts for
nothing (`Ledger.ahead`). Refuses to know what a turn is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from enum import Enum, auto

from costmodel.values import WorkerKey
from router.fleet.ledger import Ahead

KEEP_TURNS = 2  # turns of ours at a worker, one computing and one that follows it, below which nothing is held
KV_SHARE = (
    0.4  # of L1 that the prompts of our turns in prefill may want together: more would displace each other before they run
)
_LOOK_AGAIN_MS = 500.0  # predictions run out and workers are lost without an event: those in line are offered again
_MOST_OFFERS = 8  # at once, down a line whose first prefers another worker

Later = Callable[[float, Callable[[], None]], object]


class Standing(Enum):
    """How a turn asks to be let through."""

    COMES = auto()  # behind those in line
    OFFERED = auto()  # first in line


Offer = Callable[[Standing], WorkerKey | None]


class Held:
    """One turn in line. `offer` tries to place it: None when it has gone or failed, else the worker it must wait for."""

    __slots__ = ("_hold", "offer", "order", "since_ms", "worker")

    def __init__(self, hold: Hold, worker: WorkerKey, order: tuple[float, int], offer: Offer, since_ms: float) -> None:
        self._hold = hold
        self.worker = worker
        self.order = order
        self.offer = offer
        self.since_ms = since_ms

    def __lt__(self, other: Held) -> bool:
        return self.order < other.order

    def cancel(self) -> None:
        """The client left."""
        self._hold.leave(self)


class Hold:
    """Of one pool. `later(ms, call)` calls back; `clock` in ms. Turns wait by worker, in the order in which they came."""

    def __init__(self, limit_ms: float, clock: Callable[[], float], later: Later) -> None:
        """`limit_ms` of predicted compute at a worker beyond which turns wait, 0 = never."""
        self._limit_ms = limit_ms
        self._clock = clock
        self._later = later
        self._lines: dict[WorkerKey, list[Held]] = {}
        self._comers = 0
        self._looking = False
        self._looks = 0
        self.waiting = 0
        self.held = 0
        self.held_ms = 0.0  # of those that wait no more

    def must_wait(self, worker: WorkerKey, ahead: Ahead, standing: Standing) -> bool:
        """Whether a turn for this worker waits."""
        if not self._limit_ms or ahead.turns < KEEP_TURNS:
            return False
        enough = ahead.compute_ms >= self._limit_ms or ahead.kv_share >= KV_SHARE
        return enough or (standing is Standing.COMES and worker in self._lines)

    def wait(self, worker: WorkerKey, came_ms: float, offer: Offer) -> Held:
        self._comers += 1
        held = Held(self, worker, (came_ms, self._comers), offer, self._clock())
        self._join(held, worker)
        self.waiting += 1
        self.held += 1
        if not self._looking:
            self._looking = True
            self._later(_LOOK_AGAIN_MS, self._look_again)
        return held

    def freed(self, worker: WorkerKey) -> None:
        """Some prefill of ours at this worker is over. Those in line for it go while there is room; with nobody in line it is
        offered down the longest line until somebody goes."""
        if worker in self._lines:
            self._advance(worker)
        elif self._lines:
            self._offer_down(max(self._lines.values(), key=len))

    def leave(self, held: Held) -> None:
        """It waits no more. Leaving twice is harmless."""
        if self._part(held):
            self.waiting -= 1
            self.held_ms += self._clock() - held.since_ms

    def _advance(self, worker: WorkerKey) -> None:
        while worker in self._lines and self._offer(self._lines[worker][0]) != worker:
            pass

    def _offer_down(self, line: list[Held]) -> None:
        for held in line[:_MOST_OFFERS]:
            if self._offer(held) is None:
                return

    def _offer(self, held: Held) -> WorkerKey | None:
        """None when it has gone."""
        wanted = held.offer(Standing.OFFERED)
        if wanted is None:
            self.leave(held)
        elif wanted != held.worker and self._part(held):
            self._join(held, wanted)
        return wanted

    def _join(self, held: Held, worker: WorkerKey) -> None:
        held.worker = worker
        insort(self._lines.setdefault(worker, []), held)

    def _part(self, held: Held) -> bool:
        line = self._lines.get(held.worker, [])
        if held not in line:
            return False
        line.remove(held)
        if not line:
            del self._lines[held.worker]
        return True

    def _look_again(self) -> None:
        for worker in list(self._lines):
            self._advance(worker)
        if self._lines:  # an idle worker says nothing: by and by everybody is asked whether it would go there
            line = max(self._lines.values(), key=len)
            self._looks += 1
            self._offer(line[self._looks % len(line)])
        self._looking = bool(self._lines)
        if self._looking:
            self._later(_LOOK_AGAIN_MS, self._look_again)
