"""How it is told that an address cannot be listened on."""

from __future__ import annotations

import errno
import os
import socket
from typing import NoReturn

import pytest

from kvtier.settings.address import AddressTaken, check_address


def test_a_host_without_ipv6_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> NoReturn:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", without)
    with pytest.raises(AddressTaken, match=r"^listen\.host: cannot listen on ::1:8000 \(Address family not supported") as told:
        check_address("listen", "::1", 8000)
    assert told.value.key == "listen.host"
