"""What this gateway has sent to one rank and not yet seen answered: the load that no engine report knows yet.

Predict-on-route: two turns in the same millisecond must see each other, so a turn is booked when it is placed, before a byte
is written, and prefill work is worked off at the worker's own measured rate until its first token confirms it.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

import msgspec

from costmodel.turnover import Turnover
from costmodel.values import Load
from engine_adapters.base import LoadReport

_DOUBT_MS, _DOUBT_TIMES = 5_000.0, 3.0


class Work(msgspec.Struct, frozen=True, gc=False):
    """A turn's prefill as it was predicted when it was placed. Its leg ends when compute and transfer have.

    From `doubted_ms` on it holds nobody back (`ahead`): what is stuck must not stop what could run. From `over_ms` on it counts
    as over: of a whole reply on a unified worker nobody tells when its prefill is.
    """

    uncached_tokens: float
    compute_ms: float
    transfer_ms: float = 0.0
    prompt_tokens: int = 0
    doubted_ms: float = inf
    over_ms: float = inf


def doubted_at(sent_ms: float, ttft_ms: float) -> float:
    """When a prefill that was predicted to end `ttft_ms` after `sent_ms` is thought to be stuck."""
    return sent_ms + _DOUBT_MS + _DOUBT_TIMES * ttft_ms


class Ahead(NamedTuple):
    """Turns of ours whose prefill is not known to be over."""

    turns: int
    compute_ms: float  # that is left of them, as predicted
    kv_share: float  # of the worker's L1 that they want at once, 0 where its size is unknown


_NOTHING_AHEAD = Ahead(0, 0.0, 0.0)


class Ledger:
    """Bookings of one rank. `turn_id`s are unique among the open bookings."""

    __slots__ = (
        "_batch_ms",
        "_batch_until_ms",
        "_computing",
        "_decoding",
        "_decoding_tokens",
        "_host",
        "_next_doubted_ms",
        "_next_over_ms",
        "_progress_from_ms",
        "_prompt_tokens",
        "_queued_ms",
        "_report",
        "_reported_decoding",
        "_reported_decoding_tokens",
        "_reported_ms",
        "_turnover",
        "_uncached_tokens",
        "evicted_before_ms",
        "warming",
    )

    def __init__(self) -> None:
        # By turn, in order of booking. In a plain dict the first is found past the places of all that have gone.
        self._computing: OrderedDict[int, Work] = OrderedDict()
        self._decoding: dict[int, int] = {}  # turn -> context tokens
        self._decoding_tokens = 0
        self._batch_ms = self._batch_until_ms = 0.0
        self._queued_ms = 0.0
        self._uncached_tokens = 0.0
        self._progress_from_ms = 0.0
        self._prompt_tokens = 0  # of those in prefill
        self._next_over_ms = inf
        self._next_doubted_ms = inf  # or earlier
        self._report: LoadReport | None = None
        self._reported_ms = 0.0
        self._reported_decoding = 0  # own turns and their tokens when the report came
        self._reported_decoding_tokens = 0
        self._turnover = Turnover()
        self._host: Turnover | None = None
        self.evicted_before_ms = 0.0  # prompts last served before this are taken for evicted
        self.warming = 0  # warm requests of ours that are there: nobody's turns, which an engine's report counts all the same

    @property
    def inflight(self) -> int:
        """Turns, not legs: on a unified worker a turn is booked on both sides until its first token."""
        computing, decoding = len(self._computing), len(self._decoding)
        return max(decoding, computing)

    def ahead(self, now_ms: float) -> Ahead:
        """Without what is doubted."""
        if now_ms >= self._next_over_ms:
            self._assume_over(now_ms)
        if not self._computing:
            return _NOTHING_AHEAD
        turns, compute_ms, tokens = len(self._computing), self._queued_ms, self._prompt_tokens
        if now_ms >= self._next_doubted_ms:
            likely = [work for work in self._computing.values() if work.doubted_ms > now_ms]
            turns, tokens = len(likely), sum(work.prompt_tokens for work in likely)
            compute_ms = sum(work.compute_ms for work in likely)
            self._next_doubted_ms = min(work.doubted_ms for work in self._computing.values())
        capacity = self._report.kv_tokens_capacity if self._report is not None else 0
        return Ahead(turns, max(0.0, compute_ms - self._done_ms(now_ms)), tokens / capacity if capacity else 0.0)

    def _done_ms(self, now_ms: float) -> float:
        """Of the first in line, the only one that makes progress; nothing of one that is doubted."""
        head = next(iter(self._computing.values()), None)
        if head is None or head.doubted_ms <= now_ms:
            return 0.0
        return min(head.compute_ms, now_ms - self._progress_from_ms)

    def _assume_over(self, now_ms: float) -> None:
        for turn_id, work in [each for each in self._computing.items() if each[1].over_ms <= now_ms]:
            self.settle_prefill(turn_id, work.over_ms)
        self._next_over_ms = min((work.over_ms for work in self._computing.values()), default=inf)

    @property
    def report(self) -> LoadReport | None:
        return self._report

    def report_age_ms(self, now_ms: float) -> float:
        """How long the engine has not been heard; infinite before its first report."""
        return now_ms - self._reported_ms if self._report is not None else float("inf")

    @property
    def prefilling_tokens(self) -> int:
        """Prompt tokens of the turns booked for prefill."""
        return self._prompt_tokens

    @property
    def decoding_tokens(self) -> int:
        """Context tokens of the turns booked for decode."""
        return self._decoding_tokens

    def book_prefill(self, turn_id: int, work: Work, now_ms: float) -> None:
        if not self._computing:
            self._progress_from_ms = now_ms
        self._computing[turn_id] = work
        self._next_over_ms = min(self._next_over_ms, work.over_ms)
        self._next_doubted_ms = min(self._next_doubted_ms, work.doubted_ms)
        self._prompt_tokens += work.prompt_tokens
        self._uncached_tokens += work.uncached_tokens
        self._queued_ms += work.compute_ms

    def settle_prefill(self, turn_id: int, now_ms: float) -> None:
        """The prefill has finished, failed or been abandoned. Settling twice is harmless."""
        work = self._computing.pop(turn_id, None)
        if work is None:
            return
        if self._computing:
            self._prompt_tokens -= work.prompt_tokens
            self._uncached_tokens -= work.uncached_tokens
            self._queued_ms -= work.compute_ms
            self._progress_from_ms = max(self._progress_from_ms, now_ms - work.transfer_ms)
        else:
            self._uncached_tokens = self._queued_ms = 0.0
            self._prompt_tokens, self._next_doubted_ms = 0, inf

    def book_decode(self, turn_id: int, context_tokens: int, now_ms: float) -> None:
        self._batch_ms, self._batch_until_ms = self.batch_ms(now_ms), now_ms
        self._decoding_tokens += context_tokens - self._decoding.get(turn_id, 0)
        self._decoding[turn_id] = context_tokens

    def settle_decode(self, turn_id: int, now_ms: float) -> None:
        """Settling twice is harmless."""
        self._batch_ms, self._batch_until_ms = self.batch_ms(now_ms), now_ms
        self._decoding_tokens -= self._decoding.pop(turn_id, 0)

    def batch_ms(self, now_ms: float) -> float:
        """Turns booked for decode times how long they have been. What it grows by between two moments, over the time between,
        is the mean batch that a reply had: at its end alone many others have just begun, or few are left."""
        return self._batch_ms + len(self._decoding) * max(0.0, now_ms - self._batch_until_ms)

    def evicted_before(self, served_ms: float) -> None:
        self.evicted_before_ms = max(self.evicted_before_ms, served_ms)

    def reported(self, report: LoadReport, now_ms: float) -> None:
        if self.warming:
            report = report.without(self.warming)
        self._report = report
        self._reported_ms = now_ms
        computed = report.prefill_uncached_tokens_total
        if computed is not None and report.kv_tokens_capacity:
            self._turnover.observe_computed(computed, report.kv_tokens_capacity, now_ms)
        self._reported_decoding = len(self._decoding)
        self._reported_decoding_tokens = self._decoding_tokens

    def turned_over(self, stored_tokens: float, removed_tokens: float, now_ms: float) -> None:
        """What the engine's events have told of its L1 since the beginning."""
        self._turnover.observe(stored_tokens, removed_tokens, now_ms)

    def host_turned_over(self, stored_tokens: float, removed_tokens: float, now_ms: float) -> None:
        """The same of its host tier, where it has one: what leaves L1 is not lost while it lies there."""
        if self._host is None:
            self._host = Turnover()
        self._host.observe(stored_tokens, removed_tokens, now_ms)

    @property
    def _turnover_ms(self) -> float:
        return (self._host or self._turnover).replaced_ms

    def load(self, now_ms: float, ms_per_token: float, *, booked: bool = True) -> Load:
        """The engine's report and the own bookings overlap, so the larger of the two counts, never their sum.

        What a report found waiting is worked off like a booking: polls are a second apart, and a long prompt that was waiting
        then must not drive its own next turn away. What it found decoding has changed since by the own bookings.
        With `booked` false the report is all that counts.
        """
        if not booked:
            return self._reported_load(now_ms)
        if now_ms >= self._next_over_ms:
            self._assume_over(now_ms)
        turns = len(self._computing)
        queued, queued_ms = self._ahead(now_ms, ms_per_token) if turns else (0.0, 0.0)
        decoding, report = len(self._decoding), self._report
        if report is None:
            waits = max(0, turns - 1)
            return Load(
                queued,
                max(0, decoding - waits),
                waits,
                queued_ms=queued_ms,
                queued_turns=turns,
                evicting=self._turnover.evicting,
                turnover_ms=self._turnover_ms,
            )
        age_ms = now_ms - self._reported_ms
        if report.waiting_uncached_tokens:
            waiting = float(report.waiting_uncached_tokens)
            if ms_per_token > 0:
                waiting = max(0.0, waiting - age_ms / ms_per_token)
            if waiting * ms_per_token > queued_ms:
                queued_ms, turns = waiting * ms_per_token, 0
            queued = max(waiting, queued)
        waits = report.waiting_requests
        told = report.running_requests + waits - self._reported_decoding
        requests = decoding + told if told > 0 else decoding
        if waits > requests:
            waits = requests
        used_tokens = report.kv_tokens_used + self._decoding_tokens - self._reported_decoding_tokens
        if used_tokens < 0:
            used_tokens = 0
        return Load(
            queued,
            requests - waits,
            waits,
            used_tokens,
            report.kv_tokens_capacity,
            report.max_running_requests,
            age_ms,
            queued_ms,
            turns,
            self._turnover.evicting,
            self._turnover_ms,
        )

    def _reported_load(self, now_ms: float) -> Load:
        report, evicting = self._report, self._turnover.evicting
        if report is None:
            return Load(evicting=evicting, turnover_ms=self._turnover_ms)
        return Load(
            report.waiting_uncached_tokens or 0.0,
            report.running_requests,
            report.waiting_requests,
            report.kv_tokens_used,
            report.kv_tokens_capacity,
            report.max_running_requests,
            now_ms - self._reported_ms,
            evicting=evicting,
            turnover_ms=self._turnover_ms,
        )

    def _ahead(self, now_ms: float, ms_per_token: float) -> tuple[float, float]:
        """Tokens and ms that are not computed yet. Only the first in line makes progress: when it is late, what follows it is
        not known to have begun."""
        head = next(iter(self._computing.values()))
        done_ms = now_ms - self._progress_from_ms
        tokens, ahead_ms = self._uncached_tokens, self._queued_ms - min(head.compute_ms, done_ms)
        if ms_per_token > 0:
            tokens -= min(head.uncached_tokens, done_ms / ms_per_token)
        return tokens if tokens > 0 else 0.0, ahead_ms if ahead_ms > 0 else 0.0
