"""What the planner is told. Times are not part of an event: `plan` gets `now_ms` beside it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from costmodel.values import WorkerKey
from kvtier.prefetch.view import Path


class Trigger(StrEnum):
    """Why a prefetch was planned; metrics go by it."""

    TURN_END = "turn_end"
    TOOL_CALL = "tool_call"
    DECISION = "decision"
    EXPLICIT = "explicit"
    RESUME = "resume"
    DRAIN = "drain"
    SCALE_OUT = "scale_out"


class FailReason(StrEnum):
    NO_WORKER = "no_worker"  # nowhere to go: no worker would take the subject now
    NO_COPY = "no_copy"  # no node has the pages any more
    NO_ROOM = "no_room"  # the destination refused
    NO_SIZE = "no_size"  # bytes are bounded, and nobody has told how many a page has
    NODE_LOST = "node_lost"
    ENGINE_RESTARTED = "engine_restarted"
    TRANSFER = "transfer"  # the copy broke
    REFUSED = "refused"  # by the engine, of a warm request
    DISABLED = "disabled"  # kill switch or dry run


class GoneReason(StrEnum):
    COMPACTED = "compacted"
    SESSION_ENDED = "session_ended"
    DECLARED = "declared"  # the client said so


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A reply of `thread` is over, served by `worker`. `tool`: the last tool that it called, "" for none: a person is next."""

    thread: str
    worker: WorkerKey
    tool: str = ""
    client: str = ""


class ToolClosed(msgspec.Struct, frozen=True, gc=False):
    """A tool call of the running reply is complete, so that its client may have begun to run it."""

    thread: str
    worker: WorkerKey
    tool: str
    client: str = ""


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The router has placed a turn of `thread` on `worker` (of a pair the prefill); it is on its way there."""

    thread: str
    worker: WorkerKey
    client: str = ""


class Held(msgspec.Struct, frozen=True, gc=False):
    """A turn of `thread` has come, and waits in the gateway for room at `worker`, or for its pages alone where that is not
    `full`; `Sent` follows, there or elsewhere."""

    thread: str
    worker: WorkerKey
    client: str = ""
    full: bool = True


class Prefilled(msgspec.Struct, frozen=True, gc=False):
    """The prefill of the thread's turn is over, or was given up: it stands in its worker's queue no more."""

    thread: str


class Served(msgspec.Struct, frozen=True, gc=False):
    """The turn's prefill has succeeded: what it could restore it has restored. `restored_tokens` None = not told."""

    thread: str
    worker: WorkerKey
    restored_tokens: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """An explicit prefetch. It is not weighed, only budgeted. `deadline_ms` is a time of the planner's clock."""

    job: int
    subject: str
    deadline_ms: float
    worker: WorkerKey | None = None  # None: the cost model chooses
    priority: int = 0  # higher first, before deadlines
    max_bytes: int = 0  # 0 = the budgets alone limit it


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """What was `Asked` for as `subject`, a prompt without a thread, has turned out to be `thread`'s, whose turn is on its way
    to where it lies."""

    subject: str
    thread: str


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """The session of `thread` lives again after idling, while the thread itself has not been asked for yet."""

    thread: str


class Drained(msgspec.Struct, frozen=True, gc=False):
    """`worker` takes no new turns: its threads will go elsewhere. `view.target` must not name it any more."""

    worker: WorkerKey


class ScaledOut(msgspec.Struct, frozen=True, gc=False):
    """`worker` is new: threads that the cost model would now place there may bring their KV."""

    worker: WorkerKey


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The thread does not come back as it was."""

    thread: str
    reason: GoneReason


class CancelJob(msgspec.Struct, frozen=True, gc=False):
    job: int


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """Optional: how far a running `Stage` is."""

    move: int
    moved_bytes: int


class MoveEnded(msgspec.Struct, frozen=True, gc=False):
    """A `Stage` or `Warm` did what it was to do. `moved_bytes` may be less than asked: some of it was there already."""

    move: int
    moved_bytes: int


class MoveFailed(msgspec.Struct, frozen=True, gc=False):
    """A `Stage` or `Warm` did not. What it moved before that counts, and the leading `tokens` of a stage that lie there."""

    move: int
    reason: FailReason
    moved_bytes: int = 0
    tokens: int = 0


class NodeLost(msgspec.Struct, frozen=True, gc=False):
    """A node's agent does not answer: as destination its jobs fail, as source it is passed over."""

    node: str


class EngineRestarted(msgspec.Struct, frozen=True, gc=False):
    """Its L1 and L2 are empty. What lies in L3 is still worth having."""

    worker: WorkerKey


class DemandWaits(msgspec.Struct, frozen=True, gc=False):
    """A demand read waits for bandwidth on `path`: moves on it are taken back, to be begun again when it is free."""

    path: Path


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed."""


Event = (
    Ended | ToolClosed | Held | Sent | Prefilled | Served | Asked | Claimed | Resumed | Drained | ScaledOut | Gone | CancelJob
    | Progressed | MoveEnded | MoveFailed | NodeLost | EngineRestarted | DemandWaits | Tick
)  # fmt: skip
