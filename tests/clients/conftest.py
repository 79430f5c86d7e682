"""One gateway with an emulated pool for all CLIs; every test has a tap and a home folder of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_cli import INSTALLED
from client_stage import Stage, running_stage


@pytest.fixture(scope="session")
def installed() -> None:
    assert (INSTALLED / "stamp").exists(), "the agent CLIs are not installed: run scripts/envs/clients"


@pytest.fixture(scope="session")
def shared_stage(installed: None) -> Iterator[Stage]:
    with running_stage() as stage:
        yield stage


@pytest.fixture
def own_stage(installed: None) -> Iterator[Stage]:
    """For tests that break it."""
    with running_stage() as stage:
        yield stage
