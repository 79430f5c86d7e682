"""Whether an address can be listened on, asked before anything is started, so that a taken port is told in one line."""

from __future__ import annotations

import socket


class PortTaken(Exception):
    """The gateway cannot listen where it should. The message says what to do."""


def check_port(host: str, port: int) -> None:
    """Raises `PortTaken`. Port 0 is always free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(f"cannot listen on {host}:{port} ({error.strerror}): choose another --port") from error
