"""How long-running commands meet the terminal: messages on stderr, signals that end them cleanly, and exit statuses."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user or the system asked to stop; everything has been cleaned up."""


def say(text: str) -> None:
    print(f"loadback: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A line with the time that has passed, while the block runs; one plain line where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        say(text)
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(text)
        yield
    say(text)


def run(work: Coroutine[Any, Any, int]) -> int:
    """The coroutine's exit status. Ctrl-C, SIGTERM and SIGHUP cancel it and wait for its cleanup: raises `Interrupted` then.

    A second signal cancels the cleanup too.
    """
    try:
        return asyncio.run(_guarded(work))
    except asyncio.CancelledError as error:
        raise Interrupted from error


def run_reporting(work: Coroutine[Any, Any, int], expected: tuple[type[Exception], ...], interrupted_status: int) -> int:
    """Like `run`, with errors of the `expected` kinds told in a line each, and status 1."""
    try:
        return run(work)
    except Interrupted:
        say("stopped")
        return interrupted_status
    except expected as error:
        say(str(error))
    except ExceptionGroup as group:
        told, untold = group.split(expected)
        if untold is not None or told is None:
            raise
        for leaf in leaves(told):
            say(str(leaf))
    return 1


def leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, ExceptionGroup) else [error]
    return found


async def _guarded(work: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    return await task
