"""What one served turn's time to its first token teaches, and whom: the prefill curve, the queue or the decode side's room.

A turn that waited little shows what prefill takes. One that waited shows how long such waits are, and little of prefill.
"""

from __future__ import annotations

import msgspec

from costmodel.terms import compute_ms
from costmodel.values import PrefillRates, Terms

_WAIT_SHARE = 0.2  # of the time to the first token: with less, a turn tells of prefill


class Waited(msgspec.Struct, frozen=True, gc=False):
    """In the queue and for room together: the larger of the two is what learns of it."""

    predicted_ms: float
    actual_ms: float


class Lesson(msgspec.Struct, frozen=True, gc=False):
    """One of the three, the others None."""

    prefill_ms: float | None = None
    queue: Waited | None = None
    admit: Waited | None = None


def lesson(terms: Terms, ttft_ms: float, rates: PrefillRates, prompt_tokens: int, cached_tokens: int) -> Lesson:
    """`terms` as predicted for a turn whose first token took `ttft_ms` and of whose prompt `cached_tokens` were not computed;
    `rates` as they are known now."""
    fixed_ms = terms.exposed_ms + terms.transfer_ms
    waits_ms = terms.queue_ms + terms.admit_ms
    if waits_ms <= _WAIT_SHARE * ttft_ms:
        return Lesson(prefill_ms=max(0.0, ttft_ms - waits_ms - fixed_ms))
    waited_ms = ttft_ms - fixed_ms - compute_ms(rates, prompt_tokens, min(cached_tokens, prompt_tokens))
    waited = Waited(waits_ms, waited_ms)
    return Lesson(queue=waited) if terms.queue_ms >= terms.admit_ms else Lesson(admit=waited)
