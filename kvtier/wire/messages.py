"""What is said in frames. Every request has one reply; `Refused` may answer any.

Batches are columns: 32-byte digests joined, one status byte a page, and one entry a page that is OK in every other column.
Importable inside an engine's own environment: msgspec and kvtier.page alone. Ids and offsets are the agent's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import cast

import msgspec

from kvtier.page.kind import PageKind
from kvtier.page.space import PageSpace
from kvtier.page.status import Status

PROTOCOL_VERSION = 3
MAX_SPACES = 64  # that one connection may name


class Column(array):  # type: ignore[type-arg]  # at run time it takes none
    """Whole numbers, 8 bytes each, little-endian on the wire."""

    def __new__(cls, numbers: Iterable[int] | bytes = ()) -> Column:
        return cast("Column", super().__new__(cls, "q", numbers))


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Fields may be added at the end of a message, with defaults."""


class Greeting(Message, frozen=True, tag=1):
    """The first frame of every connection, from the agent. On a Unix socket its memory file comes with it."""

    version: int
    node: str
    epoch: int  # of this life of the agent: another epoch has another memory file
    pool_bytes: int
    backing: str


class Attach(Message, frozen=True, tag=2):
    """Name a page space; requests then name it by the number in `Attached`, on this connection."""

    space: PageSpace


class Attached(Message, frozen=True, tag=3):
    space: int


class Look(Message, frozen=True, tag=4):
    """How much of a prompt lies here, and may be restored by `worker`."""

    space: int
    digests: bytes
    worker: str = ""


class Looked(Message, frozen=True, tag=5):
    """Leading runs in pages: in DRAM, and in DRAM or on SSD (which is being read now)."""

    dram: int
    local: int


class Acquire(Message, frozen=True, tag=6):
    """Lease pages. Waits up to `wait_ms` for those that are being written or read from SSD.

    `bound` asks for checksums with the pages' digests folded in (`bound_checksums`): no page of the answer passes for another.
    """

    space: int
    digests: bytes
    ttl_ms: float
    wait_ms: float = 0.0
    bound: bool = False


class Acquired(Message, frozen=True, tag=7):
    lease: int
    statuses: bytes
    offsets: Column
    lengths: Column
    generations: Column
    checksums: bytes
    kinds: bytes
    depths: Column
    moved: dict[int, str]  # page -> node
    retry_after_ms: float


class Release(Message, frozen=True, tag=8):
    """With what was read under the lease, and how long copying it took; 0 where that is not told.

    No more is believed than it covered, and than it lasted; nothing of one that had ended.
    """

    lease: int
    read_bytes: int = 0
    busy_ms: float = 0.0


class Renew(Message, frozen=True, tag=9):
    """Answered by `Done(MISS)` where the lease has ended."""

    lease: int
    ttl_ms: float


class Reserve(Message, frozen=True, tag=10):
    """Claim bytes for pages `depth`, `depth` + 1, ... of a prompt, of `length` bytes each."""

    space: int
    digests: bytes
    length: int
    depth: int = 0
    kind: PageKind = PageKind.USER_QUERY


class Reserved(Message, frozen=True, tag=11):
    """EXISTS and WRITING pages need no writing; for BUSY ones there is no room now. `write` is one for all OK ones, or 0."""

    write: int
    statuses: bytes
    offsets: Column
    retry_after_ms: float


class Commit(Message, frozen=True, tag=12):
    """A write's bytes are there, with these checksums; `Done(MISS)` where it has expired: nothing is stored."""

    write: int
    checksums: bytes


class Abort(Message, frozen=True, tag=14):
    write: int


class Report(Message, frozen=True, tag=15):
    """What was read did not match its checksum. The agent looks for itself: `Done(CORRUPT)` if it agrees, else `Done(OK)`."""

    space: int
    digest: bytes
    generation: int


class ReadPages(Message, frozen=True, tag=16):
    """Send the bytes of pages `first`, `first` + 1, ... of a lease: `PagesSent` with payload, or `Done(MISS)`: it has ended."""

    lease: int
    first: int
    count: int


class PagesSent(Message, frozen=True, tag=17):
    lengths: list[int]


class PinPages(Message, frozen=True, tag=18):
    space: int
    digests: bytes
    ttl_ms: float


class PagesPinned(Message, frozen=True, tag=19):
    status: Status
    pin: int
    pages: int


class Unpin(Message, frozen=True, tag=20):
    pin: int


class TagPages(Message, frozen=True, tag=21):
    space: int
    digests: bytes
    kind: PageKind


class SetCut(Message, frozen=True, tag=22):
    """Until `ttl_ms` have passed, `worker` restores nothing from this page on."""

    worker: str
    digest: bytes
    ttl_ms: float


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where another agent listens."""

    node: str
    host: str
    port: int


class Stage(Message, frozen=True, tag=23):
    """Bring pages into this node's DRAM: from its SSD, else from the first of `sources` that has them. See `Staging`.

    What has come is held there until `hold_ms` after the stage has ended, or until it is cancelled.
    """

    space: int
    digests: bytes
    sources: list[Peer]
    deadline_ms: float
    max_bytes: int = 0  # from peers; 0 = no limit but the deadline
    hold_ms: float = 0.0


class AskStage(Message, frozen=True, tag=24):
    stage: int


class CancelStage(Message, frozen=True, tag=25):
    stage: int


class Staging(Message, frozen=True, tag=26):
    """`state` is one of `StageState`; `leading` counts pages from the first on that are in DRAM, `held` those kept there."""

    stage: int
    state: str
    pages: int
    leading: int
    fetched_bytes: int
    held: int = 0


class ReplayEvents(Message, frozen=True, tag=27):
    """What was said about a whole space since `seq`, as the index wants it."""

    space: bytes
    seq: int


class EventRun(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring events of one kind; `hashes` are 64-bit block ids, little-endian and signed."""

    stored: bool
    tier: int
    hashes: bytes
    block_tokens: int


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    events: list[EventRun]


class Events(Message, frozen=True, tag=28):
    """With `snapshot` the first batch is all there is."""

    epoch: int
    batches: list[EventBatch]
    snapshot: bool


class AskSpaces(Message, frozen=True, tag=29):
    """Which whole spaces the agent has met."""


class Spaces(Message, frozen=True, tag=30):
    epoch: int
    spaces: dict[bytes, PageSpace]  # by digest


class AskStats(Message, frozen=True, tag=31):
    pass


class Stats(Message, frozen=True, tag=32):
    """Counters and gauges by name."""

    numbers: dict[str, float]


class Clear(Message, frozen=True, tag=33):
    """Forget all pages of a space, also those on their way.

    `Done(BUSY)`: they are, but those on SSD may be found again by another life of the agent.
    """

    space: int


class Done(Message, frozen=True, tag=34):
    status: Status = Status.OK


class Refused(Message, frozen=True, tag=35):
    """The request makes no sense here. The reason is for a person."""

    reason: str


class AskMemory(Message, frozen=True, tag=36):
    """How a peer's transfer engine reads this node's memory file; refused by an agent that runs no such engine."""

    engine: str


class MemoryAt(Message, frozen=True, tag=37):
    """`introduction` is that engine's own."""

    engine: str
    introduction: bytes


Request = (
    Attach | Look | Acquire | Release | Renew | Reserve | Commit | Abort | Report | ReadPages | PinPages | Unpin | TagPages
    | SetCut | Stage | AskStage | CancelStage | ReplayEvents | AskSpaces | AskStats | Clear
    | AskMemory
)  # fmt: skip
Reply = (
    Greeting | Attached | Looked | Acquired | Reserved | PagesSent | PagesPinned | Staging | Events | Spaces | Stats
    | Done | Refused | MemoryAt
)  # fmt: skip


def _column(kind: type[Column], data: object) -> Column:
    """Raises ValueError for anything but whole numbers of 8 bytes: a list may hold numbers that no column does."""
    if not isinstance(data, bytes):
        raise ValueError(f"a column is bytes, not {type(data).__name__}")  # noqa: TRY004 - the decoder makes it a DecodeError
    return kind(data)


# Made once: to look at what may come costs more than to decode it.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=Column.tobytes)
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply, dec_hook=_column)


class MessageError(Exception):
    """A body that is no message of this version."""


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode_request(body: bytes) -> Request:
    """Raises `MessageError`."""
    try:
        return _REQUESTS.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MessageError(f"no request of protocol version {PROTOCOL_VERSION}: {error}") from error


def decode_reply(body: bytes) -> Reply:
    """Raises `MessageError`."""
    try:
        return _REPLIES.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MessageError(f"no reply of protocol version {PROTOCOL_VERSION}: {error}") from error
