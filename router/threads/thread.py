"""One remembered conversation: digests, sizes and where it last ran. No text."""

from __future__ import annotations

import sys
from array import array

import msgspec

from costmodel.values import WorkerKey
from router.threads.estimate import Rates

_BASE_BYTES = 900  # measured: the record, its arrays' headers, its dict slots
_POSITION_BYTES = 110  # measured: digest, size, and the digest's entry in the store's map
_KEY_BYTES = 200  # its entries in the store's map and in the group
_NO_BLOCKS = array("q")


# Threads and groups refer to each other, but the store takes a forgotten thread out of its group, so that counting references
# is enough and a hundred thousand of them need not slow every garbage collection down.


class Group(msgspec.Struct, eq=False, gc=False):
    """The threads of one session. `keys` are the client keys that lead to it, with the number of threads that came by each."""

    name: str
    root: str  # id of its first thread
    started_ms: float
    keys: dict[str, int] = {}
    threads: dict[str, Thread] = {}  # most recently used last


class Thread(msgspec.Struct, eq=False, gc=False):
    """Mutable; owned by one ThreadStore. The arrays are replaced, never changed in place: sightings share them.

    `digests` and `sizes` (cumulative canonical bytes) have one entry a position, the head first. Positions below `fixed` cannot
    change in the thread's next request.
    """

    id: str
    group: Group
    model: str
    rates: Rates  # of its model
    digests: array[int]  # typecode q
    sizes: array[int]  # typecode I
    fixed: int
    first_end: int  # last position of the first request
    seen_ms: float
    key: str | None
    epoch: str | None
    keys: tuple[str, ...] = ()  # those that lead to its group through it: its own, its session's
    parent: str | None = None
    first_call: bool = True  # of the last request
    retries: int = 0  # of the last request
    successors: int = 0  # compactions that took over from it
    prefill: WorkerKey | None = None
    decode: WorkerKey | None = None
    placed_ms: float | None = None
    tokens_per_byte: float = 0.0  # measured on this thread; 0 = not yet
    counted: bool = False  # on its last request, and it gives that one's count
    output_tokens: float = 0.0  # moving average; 0 = none seen
    blocks: array[int] = _NO_BLOCKS
    block_tokens: int = 0

    @property
    def cost_bytes(self) -> int:
        keys = sum(_KEY_BYTES + sys.getsizeof(key) for key in self.keys)
        return _BASE_BYTES + _POSITION_BYTES * len(self.digests) + 8 * len(self.blocks) + keys

    def begins(self, digests: array[int]) -> bool:
        """Whether a lineage has all of this thread's fixed positions, and more than a head in common with it."""
        fixed = self.fixed
        return 2 <= fixed <= len(digests) and self.digests[fixed - 1] == digests[fixed - 1]

    def equals(self, digests: array[int]) -> bool:
        return len(self.digests) == len(digests) and self.digests[-1] == digests[-1]
