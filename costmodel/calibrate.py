"""Rates learned online from what was measured, starting from priors.

Each estimator is told observations and answers with the frozen values of `costmodel.values`. It has no clock and does no I/O.
Whatever it is told, its rates stay finite and positive: nonsense is ignored, outliers are clipped, fits are clamped.
"""

from __future__ import annotations

from costmodel.line import RelativeLine
from costmodel.values import DecodeRates, Link, PrefillRates

_THROUGHPUT_TOKENS = 20_000  # a report weighs one half when it covers this many tokens
_TELLING_TOKENS = 256  # fewer say nothing where nothing is known yet
_OUTLIER_FACTOR = 4.0  # one sample moves a mean as if it were at most this far off
_PLAUSIBLE = (1e-18, 1e18)  # no rate, time or length lies outside
_LINK_WEIGHT = 0.2
_LIFETIME_WEIGHT = 0.02
_PACE_WEIGHT = 1 / 16


class PrefillEstimator:
    """A worker's prefill curve from timed prefills, and its throughput from the engine's cumulative counters.

    The two differ: throughput counts every batch's fixed cost, so it is what a queue drains at, while the curve is what one
    turn adds. The ratios of the quadratic coefficient and of a cached token's to the linear one are the model's and its
    backend's, and stay the prior's.
    """

    def __init__(self, prior: PrefillRates) -> None:
        self._prior = prior
        self._quadratic = prior.ms_per_token2 / prior.ms_per_token if prior.ms_per_token > 0 else 0.0
        self._cached = prior.ms_per_cached_token / prior.ms_per_token if prior.ms_per_token > 0 else 0.0
        self._line = RelativeLine(prior.base_ms, prior.ms_per_token, typical_x=1000.0)
        self._throughput = _Mean(prior.queue_ms_per_token or prior.ms_per_token)
        self._counters: dict[int, tuple[int, int]] = {}

    def observe(self, uncached_tokens: int, prefill_ms: float, cached_tokens: int = 0) -> None:
        """One turn's prefill, without its wait in the queue: `uncached_tokens` computed behind `cached_tokens`."""
        if uncached_tokens > 0:
            cached = max(0, cached_tokens)
            context = uncached_tokens + 2 * cached  # N^2 - k^2 = (N-k) (N-k + 2k)
            self._line.observe(uncached_tokens * (1 + self._quadratic * context) + self._cached * cached, prefill_ms)

    def observe_report(self, uncached_tokens_total: int | None, busy_us_total: int | None, dp_rank: int = 0) -> None:
        """One rank's cumulative counters as in a `LoadReport`. Counters that went back are a restarted engine's."""
        if uncached_tokens_total is None or busy_us_total is None:
            return
        before = self._counters.setdefault(dp_rank, (uncached_tokens_total, busy_us_total))
        tokens, busy_us = uncached_tokens_total - before[0], busy_us_total - before[1]
        if 0 <= tokens < _TELLING_TOKENS and not self._throughput.observed:
            return  # a hit or a warm request: its fixed cost over a token or two is no throughput
        self._counters[dp_rank] = (uncached_tokens_total, busy_us_total)
        if tokens > 0 and busy_us > 0:
            self._throughput.observe(busy_us / 1000 / tokens, tokens / (tokens + _THROUGHPUT_TOKENS))

    @property
    def rates(self) -> PrefillRates:
        """Until a prefill was timed, a measured throughput stands in for the slope."""
        queue = self._throughput.value if self._throughput.observed else self._prior.queue_ms_per_token
        if self._line.observed:
            slope = self._line.slope
            return PrefillRates(self._line.intercept, slope, slope * self._quadratic, queue, slope * self._cached)
        if self._throughput.observed:
            return PrefillRates(self._prior.base_ms, queue, 0.0, queue)
        return self._prior


class DecodeEstimator:
    """Inter-token latency against the number of running requests, and how long replies last."""

    def __init__(self, prior: DecodeRates) -> None:
        self._prior = prior
        self._line = RelativeLine(prior.itl_base_ms, prior.itl_ms_per_running, typical_x=8.0)
        self._lifetime_ms = _Mean(prior.lifetime_ms)

    def observe(self, running_requests: float, itl_ms: float) -> None:
        """One reply's mean time between tokens, at the batch it had (itself included)."""
        if running_requests >= 0:
            self._line.observe(running_requests, itl_ms)

    def observe_lifetime(self, decoding_ms: float) -> None:
        """From a reply's first token to its last: as long as it held a slot."""
        self._lifetime_ms.observe(decoding_ms, _LIFETIME_WEIGHT)

    @property
    def rates(self) -> DecodeRates:
        if not self._line.observed:
            return self._prior
        return DecodeRates(self._line.intercept, self._line.slope, self._lifetime_ms.value)


class DecodePace:
    """How fast one worker's replies go beside its pool's line, and how long they last.

    A line of its own would be fitted to a few replies at much the same batch: its slope is chance, and where chance makes it
    flat the worker looks as fast with every turn more that it gets. The workers of a pool run the same model: they share the
    line, and each has a factor.
    """

    def __init__(self) -> None:
        self._itl_ms = _Mean(0.0)
        self._batch = _Mean(0.0)
        self._lifetime_ms = _Mean(0.0)
        self._replies = 0

    def observe(self, running_requests: float, itl_ms: float, decoding_ms: float) -> None:
        """One reply's mean time between tokens, at the batch it had (itself included), and how long it held its slot."""
        if not (running_requests > 0 and _PLAUSIBLE[0] < itl_ms < _PLAUSIBLE[1]):
            return
        self._replies += 1
        weight = max(1 / self._replies, _PACE_WEIGHT)
        self._itl_ms.observe(itl_ms, weight)
        self._batch.observe(running_requests, weight)
        self._lifetime_ms.observe(decoding_ms, _LIFETIME_WEIGHT)

    def beside(self, line: DecodeRates) -> DecodeRates:
        """The pool's `line` at this worker's pace; the line itself until it has shown one."""
        expected_ms = line.itl_base_ms + line.itl_ms_per_running * self._batch.value
        if not self._replies or expected_ms <= 0:
            return line
        factor = self._itl_ms.value / expected_ms
        return DecodeRates(line.itl_base_ms * factor, line.itl_ms_per_running * factor, self._lifetime_ms.value)


class LinkEstimator:
    """A hop's bandwidth as if it were alone on it, and its latency where the engine tells."""

    def __init__(self, prior: Link) -> None:
        self._ms_per_byte = _Mean(1 / prior.bytes_per_ms)
        self._latency_ms = _Mean(prior.latency_ms)

    def observe(self, size_bytes: float, elapsed_ms: float, active_flows: int = 0) -> None:
        """One transfer that shared the hop with `active_flows` others. One faster than the latency shows that to be lower."""
        moving_ms = elapsed_ms - self._latency_ms.value
        if moving_ms <= 0:
            self._latency_ms.observe(elapsed_ms, _LINK_WEIGHT)
        elif size_bytes > 0:
            self._ms_per_byte.observe(moving_ms / size_bytes / (1 + max(0, active_flows)), _LINK_WEIGHT)

    def observe_rate(self, bytes_per_ms: float, latency_ms: float | None = None) -> None:
        """What the engine itself measured."""
        if bytes_per_ms > 0:
            self._ms_per_byte.observe(1 / bytes_per_ms, _LINK_WEIGHT)
        if latency_ms is not None:
            self._latency_ms.observe(latency_ms, _LINK_WEIGHT)

    @property
    def link(self) -> Link:
        return Link(self._latency_ms.value, 1 / self._ms_per_byte.value)


class _Mean:
    """Exponentially weighted mean of positive samples. The first replaces the prior, later ones are clipped to a factor."""

    __slots__ = ("observed", "value")

    def __init__(self, prior: float) -> None:
        self.value = prior
        self.observed = False

    def observe(self, sample: float, weight: float) -> None:
        if not _PLAUSIBLE[0] < sample < _PLAUSIBLE[1]:
            return
        if not self.observed or self.value <= 0:
            self.value = sample
            self.observed = True
            return
        clipped = min(max(sample, self.value / _OUTLIER_FACTOR), self.value * _OUTLIER_FACTOR)
        self.value += weight * (clipped - self.value)
