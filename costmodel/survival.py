"""Whether a cached prefix will still be there when its turn is computed, as caches go that evict what was least recently used.

Such a cache gives a block up once it was not used for about as long as evictions take to replace the cache. So the lifetime of
an unused block is spread around that time, and little at first: pages that were used a moment ago go last.
"""

from __future__ import annotations

import math

_SHAPE = 4.0  # of a Weibull distribution: 6 % are gone after half the turnover, 63 % after it, 99 % after one and a half
_LONG = 1e6  # turnovers: nothing is left


def survival(idle_ms: float, unheard_ms: float, ahead_ms: float, turnover_ms: float) -> float:
    """P(a prefix that was not used for `idle_ms`, and was there `unheard_ms` ago, is there in `ahead_ms`); from 0 to 1.

    What an event stream that is complete and fresh still holds was there a moment ago: little but the wait ahead counts then.
    What was only assumed to be there was last known to be when it was used. What is there after more than a turnover was
    used since by somebody else, or evictions are slower than they look: it goes like what has just reached that age.
    A turnover of 0 means that nothing is evicted.
    """
    if turnover_ms <= 0:
        return 1.0
    idle, ahead = max(0.0, idle_ms) / turnover_ms, max(0.0, ahead_ms) / turnover_ms
    since = min(idle, max(0.0, unheard_ms) / turnover_ms)
    known = min(1.0, idle - since)
    return math.exp(known**_SHAPE - min(known + since + ahead, _LONG) ** _SHAPE)
