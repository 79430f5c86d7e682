"""The `loadback` command's process: being told to stop means the same while it still loads (a second) as when it runs."""

from __future__ import annotations

import os
import signal
import sys

_UNTIL_TOLD = frozenset(("serve", "up", "agent"))  # run until a signal, and end with 0 then


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in _UNTIL_TOLD and "--check" not in sys.argv:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
    from loadback.commands import build  # what takes the second

    build()()


def _end(*_: object) -> None:
    """At once: nothing is begun yet. Commands replace this by handlers of their own before they begin anything."""
    os._exit(0)


if __name__ == "__main__":
    main()
