"""Whether an address can be listened on, asked before anything is started, so that a wrong one is told in one line."""

from __future__ import annotations

from kvtier.settings.address import AddressTaken, check_address

_HOST_FIX = "give --host an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


class CannotListen(Exception):
    """Nothing can listen there. The message says which option to change."""


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Raises `CannotListen` naming `option` where the port is at fault, else `--host`. Port 0 is always free."""
    try:
        check_address("listen", host, port)
    except AddressTaken as taken:
        fix = _HOST_FIX if taken.key == "listen.host" else f"choose another {option}"
        raise CannotListen(f"{taken.what}: {fix}") from taken
