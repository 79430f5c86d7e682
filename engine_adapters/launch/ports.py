"""Free loopback ports for engines that are about to start.

A port is free when it could be bound a moment ago; whoever starts an engine must still expect it to have been taken since.
"""

from __future__ import annotations

import socket
from random import Random

FIRST_PORT = 19200
LAST_PORT = 29999  # below the range from which systems draw ports for outgoing connections


class NoFreePort(Exception):
    """No run of free ports in the range. The message names the range."""


def free_ports(count: int, first: int = FIRST_PORT, last: int = LAST_PORT) -> tuple[int, ...]:
    """`count` distinct ports of `first`..`last` that nothing listens on.

    They are drawn, not counted up: an engine binds its ports half a minute later, and two launchers must not want the same.
    """
    found: list[int] = []
    for port in Random().sample(range(first, last + 1), last + 1 - first):
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise NoFreePort(f"only {len(found)} of {count} wanted ports are free in {first}..{last}; give another range")
    return tuple(found)


def _is_free(port: int) -> bool:
    """Bound on all interfaces, as engines bind their event sockets."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
