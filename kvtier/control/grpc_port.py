"""A gRPC server's own port: gRPC would share it with every other server of its kind (SO_REUSEPORT), and none would know."""

from __future__ import annotations

from grpc import aio

from kvtier.settings.address import AddressTaken, authority, check_address


def server_at(section: str, host: str, port: int) -> tuple[aio.Server, int]:
    """A server that is bound and not started, and its port, chosen by the system for 0. `section` of a file has the keys.
    Raises `AddressTaken`."""
    check_address(section, host, port)  # says why, which gRPC does not
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    try:
        return server, server.add_insecure_port(authority(host, port))
    except RuntimeError as error:
        raise AddressTaken(f"{section}.port", f"cannot listen on {host}:{port}") from error
