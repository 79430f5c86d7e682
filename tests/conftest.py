"""Tests that drive other people's programs (real engines, agent CLIs) are run once more when they fail: their start-up, their
own timeouts and a busy machine are not ours. A second failure is a failure, and reruns are counted in the summary. Our own
tests get none.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engines") or item.get_closest_marker("clients"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that is run within a test sends the log to that test's captured stderr, which is closed after it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
