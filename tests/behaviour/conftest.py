"""Fixtures: a stage of each kind, and one made to order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from gateway_stage import PD, PLAIN, Stage, StageMaker, open_stage


@pytest.fixture
async def make_stage() -> AsyncIterator[StageMaker]:
    """`await make_stage(kind, **config)`; see `open_stage`."""
    async with AsyncExitStack() as exits:

        async def make(kind: str, **options: Any) -> Stage:
            return await open_stage(exits, kind, **options)

        yield make


@pytest.fixture(params=[PLAIN, PD])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stage(make_stage: StageMaker, kind: str) -> Stage:
    """The default stage, once plain and once disaggregated."""
    return await make_stage(kind)


@pytest.fixture
async def pd(make_stage: StageMaker) -> Stage:
    return await make_stage(PD)


@pytest.fixture
async def plain(make_stage: StageMaker) -> Stage:
    return await make_stage(PLAIN)
