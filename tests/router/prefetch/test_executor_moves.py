"""Moves that are taken back before they have begun."""

from __future__ import annotations

import asyncio
import gc
from random import Random

import pytest

from costmodel.values import WorkerKey
from kvtier.prefetch.events import Prefilled
from kvtier.prefetch.moves import CancelMove, Move, Stage, Warm
from kvtier.prefetch.view import Path
from router.config.tree import Config
from router.gateway import Gateway

TREE = {"pools": [{"models": ["m"], "unified": [{"url": "http://127.0.0.1:1"}]}], "prefetch": {"mode": "enabled"}}


@pytest.mark.parametrize(
    "move",
    [
        Stage(1, 1, "t", Path("a", "b"), 0, 16, 1, 1e9, 1.0),
        Warm(1, 1, "t", WorkerKey("w"), 16, 1, 1e9),
    ],
)
def test_a_move_that_is_taken_back_at_once_leaves_nothing_unawaited(move: Move, recwarn: pytest.WarningsRecorder) -> None:
    asyncio.run(taken_back(move))
    gc.collect()
    assert [str(each.message) for each in recwarn.list] == []


@pytest.mark.parametrize("ended", [False, True])
async def test_what_is_told_after_the_end_begins_nothing(ended: bool) -> None:
    gateway = Gateway(Config.model_validate(TREE), lambda: 1000.0, Random(1))
    prefetcher = gateway.prefetch.prefetcher
    prefetcher.planner.plan = lambda *_: [Stage(1, 1, "t", Path("a", "b"), 0, 16, 1, 1e9, 1.0)]  # type: ignore[method-assign]
    if ended:
        await gateway.close()
    prefetcher.tell(Prefilled("t"))
    await asyncio.sleep(0)
    assert prefetcher.executor.running == (0 if ended else 1)
    await gateway.close()


async def taken_back(move: Move) -> None:
    gateway = Gateway(Config.model_validate(TREE), lambda: 1000.0, Random(1))
    executor = gateway.prefetch.prefetcher.executor
    executor.execute([move, CancelMove(1)])
    assert executor.running == 0
    await gateway.close()
    assert not executor._parting
