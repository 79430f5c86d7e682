"""One remembered conversation: digests, sizes and where it last ran. No text."""

from __future__ import annotations

from array import array

from costmodel.values import WorkerKey

_BASE_BYTES = 900  # measured: the record, its arrays' headers, its dict slots
_POSITION_BYTES = 110  # measured: digest, size, and the digest's entry in the store's map


class Thread:
    """Mutable; owned by one ThreadStore.

    `digests` and `sizes` (cumulative canonical bytes) have one entry a position, the head first. Positions below `fixed` cannot
    change in the thread's next request.
    """

    __slots__ = (
        "block_tokens",
        "blocks",
        "decode",
        "digests",
        "epoch",
        "first_call",
        "first_end",
        "fixed",
        "group",
        "id",
        "key",
        "model",
        "output_tokens",
        "parent",
        "placed_ms",
        "predicted",
        "prefill",
        "retries",
        "seen_ms",
        "sizes",
        "successors",
        "tokens_per_byte",
    )

    def __init__(
        self, id: str, group: Group, digests: array[int], sizes: array[int], *, fixed: int, model: str, now_ms: float
    ) -> None:
        self.id = id
        self.group = group
        self.digests = digests
        self.sizes = sizes
        self.fixed = fixed
        self.first_end = fixed - 1  # last position of the first request
        self.model = model
        self.seen_ms = now_ms
        self.key: str | None = None
        self.parent: str | None = None
        self.epoch: str | None = None
        self.first_call = True  # of the last request
        self.retries = 0  # of the last request
        self.successors = 0  # compactions that took over from it
        self.prefill: WorkerKey | None = None
        self.decode: WorkerKey | None = None
        self.placed_ms: float | None = None
        self.tokens_per_byte = 0.0  # measured on this thread; 0 = not yet
        self.output_tokens = 0.0  # moving average; 0 = none seen
        self.predicted: int | None = None  # digest of the next position, if the client repeats the reply as it was
        self.blocks: array[int] = array("q")
        self.block_tokens = 0

    @property
    def cost_bytes(self) -> int:
        return _BASE_BYTES + _POSITION_BYTES * len(self.digests) + 8 * len(self.blocks)

    def begins(self, digests: array[int]) -> bool:
        """Whether a lineage has all of this thread's fixed positions, and more than a head in common with it."""
        fixed = self.fixed
        return 2 <= fixed <= len(digests) and self.digests[fixed - 1] == digests[fixed - 1]

    def equals(self, digests: array[int]) -> bool:
        return len(self.digests) == len(digests) and self.digests[-1] == digests[-1]


class Group:
    """The threads of one session, newest use last. `keys` are the client keys that lead to it."""

    __slots__ = ("keys", "name", "started_ms", "threads")

    def __init__(self, name: str, started_ms: float) -> None:
        self.name = name
        self.started_ms = started_ms
        self.keys: set[str] = set()
        self.threads: dict[str, Thread] = {}
