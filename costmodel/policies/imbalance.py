"""The test that smg and sglang put before their cache-aware rules: is load so uneven that the cache must not matter?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from costmodel.policies.power_of_two import in_flight
from costmodel.values import Prefill


class Imbalance(msgspec.Struct, frozen=True):
    """Uneven when max - min > `absolute` and max > `relative` x min, both in turns in flight."""

    absolute: int
    relative: float

    def shortest_queue(self, prefills: Sequence[Prefill]) -> Prefill | None:
        """Where an uneven fleet's turn goes; None when the fleet is even enough."""
        loads = [prefill.inflight_turns for prefill in prefills]
        low, high = min(loads), max(loads)
        return min(prefills, key=in_flight) if high - low > self.absolute and high > low * self.relative else None
