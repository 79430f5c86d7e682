"""Fits the engine model's rates to measured calls: the rates under which its virtual replay of the same calls, sent at the same
times, is least off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from bench.validate.timed import Timed, quantile
from bench.validate.virtual import Fitted, VirtualReplay

_STEPS = (1.6, 1.25, 1.1, 1.04)  # factors tried on one rate at a time, coarse to fine
_SWEEPS = 5  # at most, a step
_E2E_WEIGHT = 0.3  # what decode teaches, beside the first token
_MARKS = (0.5, 0.9)  # quantiles of TTFT that are to be met, too: single calls alone would leave the tails' noise unpriced
_MARK_WEIGHT = 0.5
_PROBE_WEIGHT = 0.3  # of idle probes beside sessions: they tell the rates apart
_FAR = math.log(3.0)  # one call counts as if it were at most three times off

Change = Callable[[Fitted, float], Fitted]


def _engine(name: str) -> Change:
    def change(fitted: Fitted, factor: float) -> Fitted:
        value = getattr(fitted.engine, name) * factor
        return msgspec.structs.replace(fitted, engine=msgspec.structs.replace(fitted.engine, **{name: value}))

    return change


def _wire(name: str) -> Change:
    return lambda fitted, factor: msgspec.structs.replace(fitted, **{name: getattr(fitted, name) * factor})


_CHANGES: tuple[Change, ...] = (
    *(_engine(name) for name in ("prefill_base_ms", "prefill_ms_per_token", "prefill_ms_per_end2")),
    *(_engine(name) for name in ("decode_base_ms", "decode_ms_per_running", "decode_ms_per_context_token")),
    *(_wire(name) for name in ("wire_ms", "wire_ms_per_token")),
)


def fit(start: Fitted, probes: Sequence[Timed], sessions: Sequence[Timed]) -> Fitted:
    """From the idle probes alone, then from probes and sessions together."""
    known = _descent(start, lambda fitted: _off_of(fitted, probes))
    return _descent(known, lambda fitted: session_loss(fitted, sessions) + _PROBE_WEIGHT * _off_of(fitted, probes))


def session_loss(fitted: Fitted, measured: Sequence[Timed]) -> float:
    """How far the replay of `measured` is off, call by call and at the marks."""
    predicted = VirtualReplay(fitted).as_sent(measured)
    marks = sum(abs(math.log(_mark(predicted, share) / _mark(measured, share))) for share in _MARKS)
    return off(predicted, measured) + _MARK_WEIGHT * marks


def off(predicted: Sequence[Timed], measured: Sequence[Timed]) -> float:
    """Mean of the logarithms by which times are off."""
    known = {(timed.session, timed.index): timed for timed in measured}
    return fmean(_off(timed, known[timed.session, timed.index]) for timed in predicted)


def _descent(start: Fitted, loss_of: Callable[[Fitted], float]) -> Fitted:
    """By one rate at a time: a step up or down as long as that helps."""
    best, loss = start, loss_of(start)
    for step in _STEPS:
        for _ in range(_SWEEPS):
            before = loss
            for change in _CHANGES:
                for factor in (step, 1 / step):
                    tried = change(best, factor)
                    if (found := loss_of(tried)) < loss:
                        best, loss = tried, found
                        break
            if loss == before:
                break
    return best


def _off_of(fitted: Fitted, measured: Sequence[Timed]) -> float:
    return off(VirtualReplay(fitted).as_sent(measured), measured)


def _mark(calls: Sequence[Timed], share: float) -> float:
    return quantile([timed.ttft_ms for timed in calls], share)


def _off(predicted: Timed, measured: Timed) -> float:
    first = min(_FAR, abs(math.log(predicted.ttft_ms / measured.ttft_ms)))
    return first + _E2E_WEIGHT * min(_FAR, abs(math.log(predicted.e2e_ms / measured.e2e_ms)))
