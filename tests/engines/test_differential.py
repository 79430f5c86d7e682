"""The emulator answers as real SGLang does: a probe's differences are none, or stand in the table with a date and a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import date

import pytest
import pytest_asyncio
from differential import EXCEPTIONS, MODEL_DIR, compare, observe, unexplained
from probes import PROBES
from stage import Stage, emulated_stage, real_stage

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stage, Stage]]:
    """(real, emulated), with equal settings."""
    logs = tmp_path_factory.mktemp("differential")
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(real_stage(MODEL_DIR, logs))
        yield real, await stack.enter_async_context(emulated_stage(MODEL_DIR, logs))


@pytest.mark.parametrize("probe", PROBES)
async def test_the_emulator_answers_as_sglang_does(stages: tuple[Stage, Stage], probe: str) -> None:
    real, emulated = stages
    found = unexplained(compare(probe, await observe(real, probe), await observe(emulated, probe)))
    assert not found, "\n".join(map(str, found))


async def test_every_exception_has_a_date_and_a_reason() -> None:
    for exception in EXCEPTIONS:
        assert date.fromisoformat(exception.since).year >= 2026
        assert exception.why
