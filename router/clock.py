"""The clock and the random generator that `build_app` hands down, so that tests can put others in their place."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]  # monotonic milliseconds


def system_clock() -> float:
    return time.monotonic() * 1000.0
