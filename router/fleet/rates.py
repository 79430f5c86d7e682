"""A worker's rates: its own once it has shown enough of itself lately, those of its pool until then and afterwards.

By its own rates alone a worker whose first turns happened to be slow would get no more, and nothing would ever correct them.
The workers of a pool run the same model on the same kind of machine: what one shows is the best guess for a silent other.
Of decode that goes further: the line is the pool's, and a worker's own is a factor (`costmodel.calibrate.DecodePace`).
"""

from __future__ import annotations

from enum import StrEnum

from costmodel.accuracy import Accuracy
from costmodel.calibrate import DecodeEstimator, DecodePace, PrefillEstimator
from costmodel.calibration import Calibration
from costmodel.factor import MedianFactor
from costmodel.lesson import Lesson
from costmodel.regret import Regret
from costmodel.values import DecodeRates, PrefillRates

_OWN_AFTER = 8  # observations
_SETTLED = 16  # of the pool's prefills: from then on what a first token took beyond them is something else's
_SETTLED_ANYWAY = 64  # first tokens: where nearly all turns restore no prefill would ever be timed


class LegTerm(StrEnum):
    """What can be timed apart: from dispatch to the end of prefill, from there to the first token, and the reply's tokens. A
    whole reply tells nothing; on a unified worker the first token ends the first of them."""

    PREFILL = "prefill"  # admit, queue, exposed and compute
    TRANSFER = "transfer"
    DECODE = "decode"


_SILENT_MS = 120_000.0
_REUSE_TOKENS = 10_000_000  # the reuse share is a mean over about so many prompt tokens


class Rates:
    """Rates of one worker (`pool` given) or of a pool. Values are worked out when something is observed, not when asked."""

    def __init__(self, prefill: PrefillRates, decode: DecodeRates, pool: Rates | None = None) -> None:
        self._pool = pool
        self._prefill = PrefillEstimator(prefill)
        self._decode = DecodeEstimator(decode)
        self._prefill_rates = prefill
        self._decode_rates = decode
        self._pace = DecodePace()
        self._paced: tuple[DecodeRates, DecodeRates] | None = None  # the pool's line, and this worker's beside it
        self.reuse_share = 1.0
        self.served = 0  # turns since the worker was last discovered
        self.queue_factor = MedianFactor()
        self.admit_factor = MedianFactor()
        self.accuracy = Accuracy()
        self.legs = {leg: Accuracy() for leg in LegTerm}
        self.regret = Regret()
        self._prefills = 0
        self._decodes = 0
        self._prefill_seen_ms = self._decode_seen_ms = float("-inf")

    def prefill(self, now_ms: float) -> PrefillRates:
        pool = self._pool
        if pool is None or not pool._prefills:
            return self._prefill_rates
        known = self._prefills >= _OWN_AFTER and now_ms - self._prefill_seen_ms < _SILENT_MS
        return self._prefill_rates if known else pool._prefill_rates

    def decode(self, now_ms: float) -> DecodeRates:
        pool = self._pool
        if pool is None or not pool._decodes:
            return self._decode_rates
        known = self._decodes >= _OWN_AFTER and now_ms - self._decode_seen_ms < _SILENT_MS
        return self._own_decode(pool._decode_rates) if known else pool._decode_rates

    def _own_decode(self, line: DecodeRates) -> DecodeRates:
        if self._paced is None or self._paced[0] is not line:
            self._paced = line, self._pace.beside(line)
        return self._paced[1]

    def observe_prefill(self, uncached_tokens: int, prefill_ms: float, cached_tokens: int, now_ms: float) -> None:
        self._prefill.observe(uncached_tokens, prefill_ms, cached_tokens)
        self._prefill_rates = self._prefill.rates
        self._prefills += 1
        self._prefill_seen_ms = now_ms
        if self._pool is not None:
            self._pool.observe_prefill(uncached_tokens, prefill_ms, cached_tokens, now_ms)

    @property
    def settled(self) -> bool:
        pool = self._pool or self
        return pool._prefills >= _SETTLED or pool.accuracy.turns >= _SETTLED_ANYWAY

    def observe_served(self) -> None:
        self.served += 1

    def observe_wait(self, told: Lesson) -> None:
        """How far the laws of waiting are off is a matter of the engine: the workers of a pool share it."""
        owner = self._pool or self
        if told.queue is not None:
            owner.queue_factor.observe(told.queue.predicted_ms, told.queue.actual_ms)
        elif told.admit is not None:
            owner.admit_factor.observe(told.admit.predicted_ms, told.admit.actual_ms)

    def observe_ttft(self, predicted_ms: float, actual_ms: float) -> None:
        self.accuracy.observe(predicted_ms, actual_ms)
        if self._pool is not None:
            self._pool.observe_ttft(predicted_ms, actual_ms)

    def observe_reuse(self, prompt_tokens: int, cached_tokens: int) -> None:
        """How much of prompts comes from cache is a matter of the pool's traffic."""
        owner = self._pool or self
        weight = min(1.0, prompt_tokens / _REUSE_TOKENS)
        owner.reuse_share += weight * (min(1.0, cached_tokens / prompt_tokens) - owner.reuse_share)

    def observe_decode(self, batch: float, itl_ms: float, decoding_ms: float, now_ms: float) -> None:
        """A reply's mean time between tokens at the mean batch that it had, itself included, and how long it held its slot."""
        self._decodes += 1
        self._decode_seen_ms = now_ms
        if self._pool is not None:
            self._pace.observe(batch, itl_ms, decoding_ms)
            self._paced = None
            self._pool.observe_decode(batch, itl_ms, decoding_ms, now_ms)
            return
        self._decode.observe(batch, itl_ms)
        self._decode.observe_lifetime(decoding_ms)
        self._decode_rates = self._decode.rates

    def calibration(self) -> Calibration:
        """What was learned, for another process to start from. Decode's line is the pool's to keep."""
        prefill = self._prefill_rates if self._prefills else None
        decode = self._decode_rates if self._decodes and self._pool is None else None
        queue, admit = self.queue_factor.value, self.admit_factor.value
        return Calibration(prefill, decode, None, queue, admit, self.reuse_share)

    def restore(self, known: Calibration) -> None:
        """Start from what another process has learned: as first beliefs, which the first turns can still overturn."""
        if known.prefill is not None:
            self._prefill, self._prefill_rates = PrefillEstimator(known.prefill), known.prefill
            self._prefills = max(self._prefills, 1)
        if known.decode is not None:
            self._decode, self._decode_rates = DecodeEstimator(known.decode), known.decode
            self._decodes = max(self._decodes, 1)
        self.queue_factor, self.admit_factor = MedianFactor(known.queue_factor), MedianFactor(known.admit_factor)
        self.reuse_share = min(1.0, known.reuse_share)

    def observe_report(self, uncached_tokens_total: int | None, busy_us_total: int | None, dp_rank: int) -> None:
        """The engine's own counters; they differ from worker to worker, so the pool hears nothing of them."""
        self._prefill.observe_report(uncached_tokens_total, busy_us_total, dp_rank)
        self._prefill_rates = self._prefill.rates
