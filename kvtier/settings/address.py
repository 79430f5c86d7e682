"""Whether an address of a file can be listened on, asked before anything is started, and how it is told that it cannot."""

from __future__ import annotations

import errno
import socket

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class AddressTaken(Exception):
    """Nothing can listen there. The message begins with the key that is at fault, and says why (`what`)."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key}: {what}")
        self.key = key
        self.what = what


def check_address(section: str, host: str, port: int) -> None:
    """Raises `AddressTaken`. `section` of the file has the keys `host` and `port`. Port 0 is always free."""
    bound(section, host, port).close()


def bound(section: str, host: str, port: int) -> socket.socket:
    """A socket that has the address, not listening yet. Raises `AddressTaken`."""
    listener: socket.socket | None = None
    try:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:  # the second: what Python makes of `a..b`
        if listener is not None:
            listener.close()
        raise _refusal(section, host, port, error) from error
    return listener


def authority(host: str, port: int) -> str:
    """As URLs and gRPC spell an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refusal(section: str, host: str, port: int, error: OSError | UnicodeError) -> AddressTaken:
    if isinstance(error, UnicodeError):
        return AddressTaken(f"{section}.host", f"cannot listen on {host}:{port} (no name of a host)")
    wrong_host = isinstance(error, socket.gaierror) or error.errno in _NOT_HERE
    return AddressTaken(f"{section}.{'host' if wrong_host else 'port'}", f"cannot listen on {host}:{port} ({error.strerror})")
