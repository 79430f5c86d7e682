"""What one served turn's time to its first token teaches, and whom: a restore, the prefill curve, the queue or the decode
side's room.

A turn that waited little shows what prefill takes; where most of what it did not find in L1 was restored, and that held the
first token up, it shows what restoring takes. One that waited shows how long such waits are, and little of the others.
"""

from __future__ import annotations

import msgspec

from costmodel.restore import RestoreLegs
from costmodel.terms import compute_ms
from costmodel.values import PrefillRates, Terms, Tier

_WAIT_SHARE = 0.2  # of the time to the first token: with less, a turn tells of prefill
_RESTORE_SHARE = 0.2  # of it, as predicted or as seen: with less, nothing is told of a restore


class Waited(msgspec.Struct, frozen=True, gc=False):
    """In the queue and for room together: the larger of the two is what learns of it."""

    predicted_ms: float
    actual_ms: float


class Restored(msgspec.Struct, frozen=True, gc=False):
    """The leg that most of the restored part passed. `actual_ms` below 0: it cannot be told how fast it was."""

    tier: Tier
    predicted_ms: float
    actual_ms: float


class Lesson(msgspec.Struct, frozen=True, gc=False):
    """One of the four, the others None; or nothing at all."""

    prefill_ms: float | None = None
    queue: Waited | None = None
    admit: Waited | None = None
    restore: Restored | None = None


def lesson(
    terms: Terms,
    ttft_ms: float,
    rates: PrefillRates,
    prompt_tokens: int,
    cached_tokens: int,
    legs: RestoreLegs | None = None,
    *,
    settled: bool = True,
    overlap_rho: float = 1.0,
) -> Lesson:
    """`terms` as predicted for a turn whose first token took `ttft_ms` and of whose prompt `cached_tokens` were not computed;
    `rates` as they are known now. `legs`: what it restored, where that is told. One that was held up by that teaches nothing
    until `rates` are `settled`: how much of it was compute is not known, and it must not be taken for compute. A restore that
    was not predicted is: where tiers are not known, prefill stands for all of it."""
    waits_ms = terms.queue_ms + terms.admit_ms
    computing_ms = compute_ms(rates, prompt_tokens, min(cached_tokens, prompt_tokens))
    if waits_ms <= _WAIT_SHARE * ttft_ms:
        if legs is not None and terms.fetch_ms > 0 and legs.tokens >= prompt_tokens - cached_tokens:
            told = _restored(legs, terms, ttft_ms, computing_ms, overlap_rho)
            if told is not None:
                return Lesson(restore=told) if settled else Lesson()
        return Lesson(prefill_ms=max(0.0, ttft_ms - waits_ms - terms.exposed_ms - terms.transfer_ms))
    waited = Waited(waits_ms, ttft_ms - terms.exposed_ms - terms.transfer_ms - computing_ms)
    return Lesson(queue=waited) if terms.queue_ms >= terms.admit_ms else Lesson(admit=waited)


def _restored(legs: RestoreLegs, terms: Terms, ttft_ms: float, computing_ms: float, rho: float) -> Restored | None:
    """`costmodel.terms.exposed_ms` turned round: what nothing hid, and what hid the rest, is how long the leg took."""
    seen_ms = ttft_ms - terms.queue_ms - terms.admit_ms - terms.transfer_ms - computing_ms
    deep_exposed, host_exposed = max(0.0, legs.deep_ms - terms.queue_ms), max(0.0, legs.host_ms - rho * computing_ms)
    if max(seen_ms, deep_exposed + host_exposed) < _RESTORE_SHARE * ttft_ms:
        return None
    if legs.tier is Tier.L2:
        return Restored(Tier.L2, legs.host_ms, seen_ms - deep_exposed + rho * computing_ms)
    return Restored(legs.tier, legs.deep_ms, seen_ms - host_exposed + terms.queue_ms)
