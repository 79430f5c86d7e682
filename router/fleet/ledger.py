"""What this gateway has sent to one rank and not yet seen answered: the load that no engine report knows yet.

Predict-on-route: two turns in the same millisecond must see each other, so a turn is booked when it is placed, before a byte
is written, and prefill work is worked off at the worker's own measured rate until its first token confirms it.
"""

from __future__ import annotations

from costmodel.values import Load
from engine_adapters.base import LoadReport


class Ledger:
    """Bookings of one rank. `turn_id`s are unique among the open bookings."""

    __slots__ = (
        "_computing",
        "_decoding",
        "_progress_from_ms",
        "_report",
        "_reported_ms",
        "_uncached_tokens",
        "evicted_before_ms",
    )

    def __init__(self) -> None:
        self._computing: dict[int, float] = {}  # turn -> uncached tokens, in order of booking
        self._decoding: dict[int, int] = {}  # turn -> context tokens
        self._uncached_tokens = 0.0
        self._progress_from_ms = 0.0
        self._report: LoadReport | None = None
        self._reported_ms = 0.0
        self.evicted_before_ms = 0.0  # prompts last served before this are taken for evicted

    @property
    def inflight(self) -> int:
        """Turns, not legs: on a unified worker a turn is booked on both sides until its first token."""
        computing, decoding = len(self._computing), len(self._decoding)
        return max(decoding, computing)

    @property
    def report(self) -> LoadReport | None:
        return self._report

    def book_prefill(self, turn_id: int, uncached_tokens: float, now_ms: float) -> None:
        if not self._computing:
            self._progress_from_ms = now_ms
        self._computing[turn_id] = uncached_tokens
        self._uncached_tokens += uncached_tokens

    def settle_prefill(self, turn_id: int, now_ms: float) -> None:
        """The prefill has finished, failed or been abandoned. Settling twice is harmless."""
        tokens = self._computing.pop(turn_id, None)
        if tokens is not None:
            self._uncached_tokens = self._uncached_tokens - tokens if self._computing else 0.0
            self._progress_from_ms = now_ms

    def book_decode(self, turn_id: int, context_tokens: int) -> None:
        self._decoding[turn_id] = context_tokens

    def settle_decode(self, turn_id: int) -> None:
        self._decoding.pop(turn_id, None)

    def evicted_before(self, served_ms: float) -> None:
        self.evicted_before_ms = max(self.evicted_before_ms, served_ms)

    def reported(self, report: LoadReport, now_ms: float) -> None:
        self._report = report
        self._reported_ms = now_ms

    def load(self, now_ms: float, ms_per_token: float) -> Load:
        """The engine's report and the own bookings overlap, so the larger of the two counts, never their sum.

        What a report found waiting is worked off like a booking: polls are a second apart, and a long prompt that was waiting
        then must not drive its own next turn away.
        """
        queued = self._queued_tokens(now_ms, ms_per_token) if self._computing else 0.0
        report = self._report
        if report is None:
            return Load(queued, len(self._decoding), max(0, len(self._computing) - 1))
        age_ms, running, decoding = now_ms - self._reported_ms, report.running_requests, len(self._decoding)
        waiting = report.waiting_uncached_tokens or 0.0
        if waiting and ms_per_token > 0:
            waiting = max(0.0, waiting - age_ms / ms_per_token)
        return Load(
            max(waiting, queued),
            max(decoding, running),
            report.waiting_requests,
            report.kv_tokens_used,
            report.kv_tokens_capacity,
            report.max_running_requests,
            age_ms,
        )

    def _queued_tokens(self, now_ms: float, ms_per_token: float) -> float:
        head = next(iter(self._computing.values()))
        done = min(head, (now_ms - self._progress_from_ms) / ms_per_token) if ms_per_token > 0 else 0.0
        return max(0.0, self._uncached_tokens - done)
