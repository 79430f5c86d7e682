"""Signals cancel and wait for cleanup; expected errors are one line and status 1."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from loadback.terminal import Interrupted, run, run_reporting


class Expected(Exception):
    pass


async def signalled(cleaned: list[str]) -> int:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        cleaned.append("yes")
    return 0


async def failing(error: Exception) -> int:
    raise error


async def seven() -> int:
    return 7


def test_a_signal_cancels_and_cleanup_is_waited_for() -> None:
    cleaned: list[str] = []
    with pytest.raises(Interrupted):
        run(signalled(cleaned))
    assert cleaned == ["yes"]


def test_statuses() -> None:
    assert run_reporting(seven(), (), interrupted_status=130) == 7
    assert run_reporting(signalled([]), (), interrupted_status=130) == 130


@pytest.mark.parametrize("error", [Expected("no port"), ExceptionGroup("g", [ExceptionGroup("h", [Expected("no port")])])])
def test_expected_errors_are_told(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting(failing(error), (Expected,), interrupted_status=130) == 1
    assert capsys.readouterr().err == "loadback: no port\n"


@pytest.mark.parametrize("error", [KeyError("bug"), ExceptionGroup("g", [Expected("x"), KeyError("bug")])])
def test_unexpected_errors_stay_loud(error: Exception) -> None:
    with pytest.raises((KeyError, ExceptionGroup)):
        run_reporting(failing(error), (Expected,), interrupted_status=130)
