"""The few socket options that the byte path sets itself. (TCP_NODELAY is set by asyncio and uvloop on every TCP transport.)"""

from __future__ import annotations

import asyncio
import socket
import struct

_LINGER_NONE = struct.pack("ii", 1, 0)
_IDLE_S, _INTERVAL_S, _PROBES = 30, 10, 3


def reset(transport: asyncio.WriteTransport) -> None:
    """Close with RST and drop what was not sent yet: no peer can take it for a clean end, however the message was framed."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    transport.abort()


def probe_when_silent(transport: asyncio.BaseTransport) -> None:
    """TCP keep-alive: a host that vanished sends nothing, and probes find it long before a deadline between bytes does."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
