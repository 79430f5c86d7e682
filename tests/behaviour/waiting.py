"""The one way in which behaviour tests wait: for a fact, with a deadline. No test ever sleeps for a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 10.0
_LOOK_S = 0.002


async def until(fact: Callable[[], object], what: str) -> None:
    """Return once `fact()` holds; fails the test naming `what` after the deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110  facts lie in several objects, most of which know no events
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {DEADLINE_S:g} s") from None
