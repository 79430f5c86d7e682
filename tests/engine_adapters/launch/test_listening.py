"""What is told of an address that nothing can listen on."""

from __future__ import annotations

import socket

import pytest

from engine_adapters.launch.listening import CannotListen, check_port


def test_a_taken_port_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{port} .*choose another --port$"):
            check_port("127.0.0.1", port)
        with pytest.raises(CannotListen, match=r"choose another --kv-port$"):
            check_port("0.0.0.0", port, "--kv-port")
    check_port("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["nonsense.invalid", "192.0.2.7", "2001:db8::7", "a..b"])
def test_a_host_that_is_not_here_is_not_the_ports_fault(host: str) -> None:
    with pytest.raises(CannotListen) as told:
        check_port(host, 0)
    assert "give --host an address of this machine" in str(told.value)
    assert "--port" not in str(told.value)
