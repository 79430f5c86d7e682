"""The frame: 16 bytes of header, a msgpack body, and raw payload behind it.

    call u32    chosen by who asks, repeated by who answers; so many calls can be under way on one connection
    body u32    bytes of the message
    payload u64 bytes that follow it, read straight into their place

Little-endian. Pure encoding; also used inside engines: standard library alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER_BYTES = 16
MAX_BODY_BYTES = 32 << 20
MAX_PAYLOAD_BYTES = 1 << 30
GREETING_CALL = 0  # the frame that a server sends first

_HEADER = struct.Struct("<IIQ")


class FrameError(Exception):
    """What came is no frame of ours. The connection is of no more use."""


class Header(NamedTuple):
    call: int
    body_bytes: int
    payload_bytes: int


def pack_frame(call: int, body: bytes, payload_bytes: int = 0) -> bytes:
    """Header and body; `payload_bytes` are to follow."""
    if len(body) > MAX_BODY_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a message of {len(body)} bytes with {payload_bytes} behind it is too large: ask for fewer pages")
    return _HEADER.pack(call, len(body), payload_bytes) + body


def unpack_header(data: bytes | bytearray | memoryview) -> Header:
    """From HEADER_BYTES. Raises `FrameError` for sizes that nobody sends."""
    header = Header(*_HEADER.unpack(data))
    if header.body_bytes > MAX_BODY_BYTES or header.payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame that claims {header.body_bytes} + {header.payload_bytes} bytes is not one of ours")
    return header
