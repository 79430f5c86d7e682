"""The planner's knobs. Every default says what it is for; the router's YAML and the simulator's options set them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvtier.prefetch.events import Trigger

_MIB = 1 << 20


class Mode(StrEnum):
    OFF = "disabled"  # the kill switch: nothing is weighed, what runs is taken back
    DRY_RUN = "dry_run"  # everything is weighed and counted, nothing is moved
    ON = "enabled"


class PrefetchParams(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode = Mode.ON
    triggers: frozenset[Trigger] = frozenset(Trigger)  # an ablation leaves some out

    # what is worth it
    min_probability: float = 0.75  # of a return while what was staged is held; below it the waste outweighs
    min_saved_ms: float = 5.0
    cost_margin: float = 1.5  # the benefit must be this much larger than the cost
    first_check_ms: float = 100.0  # after a turn's end: many tools are back sooner, and its KV is still where it was used
    lost_after_ms: float = 900_000.0  # a thread that has idled for so long teaches that such threads do not come back
    hold_ms: float = 120_000.0  # how long what was staged is leased
    warm_min_probability: float = 0.7
    warm_hold_ms: float = 20_000.0  # how long L1 is expected to keep what a warm request brought up
    warm_max_queue_ms: float = 200.0  # no warm request to a worker that is behind by more
    recall_turns: int = (
        4  # in front of a worker's queue, behind the one being computed: more would push each other out of L2 again
    )
    recall_after_ms: float = 1_000.0  # since the turn was sent: what the engine reads when it comes is on its way before
    recall_tokens: int = 256  # in L3 alone, fewer an engine does not read
    drain_window_ms: float = 600_000.0  # a thread that may return within this moves off a draining worker
    drain_threads: int = 256  # the hottest of them

    # budgets
    chunk_bytes: int = 256 * _MIB  # of one `Stage`: demand waits for at most one on a link
    link_share: float = 0.5  # of the bandwidth that demand leaves
    link_inflight_bytes: int = 256 * _MIB
    node_inflight_bytes: int = 1024 * _MIB  # in and out
    node_held_bytes: int = 64 << 30  # staged or on its way, and not yet used
    warm_window_tokens: int = 32_768  # of one `Warm`: a burst to the device is parted, so that a running prefill is not stalled
    warm_device_share: float = 0.5  # of a worker's L1 for what was warmed and not yet used: more would push itself out
    retry_ms: float = 20.0  # until a budget or a link that was full is looked at again

    # bounds
    max_jobs: int = 1024
    max_threads: int = 65_536

    def __post_init__(self) -> None:
        if self.chunk_bytes > min(self.link_inflight_bytes, self.node_inflight_bytes):
            raise ValueError("chunk_bytes must fit link_inflight_bytes and node_inflight_bytes, or nothing is ever staged")
        if not 0 < self.link_share <= 1:
            raise ValueError("link_share must be above 0 and at most 1")
