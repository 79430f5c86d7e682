"""Whether an address can be listened on, asked before anything is started, so that a wrong one is told in one line."""

from __future__ import annotations

import errno
import socket

_HOST_FIX = "give --host an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class CannotListen(Exception):
    """Nothing can listen there. The message says which option to change."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Raises `CannotListen` naming `option` where the port is at fault, else `--host`. Port 0 is always free."""
    try:
        _bind(host, port)
    except UnicodeError as error:  # what Python makes of `a..b`
        raise CannotListen(f"cannot listen on {host}:{port} (no name of a host): {_HOST_FIX}") from error
    except OSError as error:
        wrong_host = isinstance(error, socket.gaierror) or error.errno in _NOT_HERE
        fix = _HOST_FIX if wrong_host else f"choose another {option}"
        raise CannotListen(f"cannot listen on {host}:{port} ({error.strerror}): {fix}") from error


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
