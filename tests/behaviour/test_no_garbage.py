"""A turn's body may be a megabyte: nothing of a finished turn may wait for the cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fake_engine import Script
from gateway_stage import Stage
from waiting import until

from router.turn.attempt import Attempt
from router.turn.turn import Turn
from router.wire.request import HotRequest

pytestmark = pytest.mark.slow


@dataclass
class Kept:
    """What still exists of turns, without the collector's help."""

    @property
    def names(self) -> list[str]:
        return [type(found).__name__ for found in gc.get_objects() if type(found) in (Turn, Attempt, HotRequest)]


@pytest.fixture
def kept() -> Iterator[Kept]:
    gc.collect()
    gc.disable()
    yield Kept()
    gc.enable()


@pytest.mark.parametrize("stream", [True, False])
async def test_served(stage: Stage, kept: Kept, stream: bool) -> None:
    assert (await stage.ask(stream=stream)).status == 200
    await until(lambda: not kept.names, "nothing is left of the turn")


@pytest.mark.parametrize("script", [Script(status=500), Script(status=400), Script(error_after=0)], ids=["500", "400", "event"])
async def test_failed(stage: Stage, kept: Kept, script: Script) -> None:
    stage.script(stage.replying, script)
    assert (await stage.ask(stream=True)).status >= 400
    await until(lambda: not kept.names, "nothing is left of the turn")


async def test_client_left(stage: Stage, kept: Kept) -> None:
    stage.script(stage.replying, Script(stay_after=2))
    call = await stage.send(stream=True)
    await call.until_body(b"t1")
    await call.leave()
    await until(lambda: not kept.names, "nothing is left of the turn")
