"""Up to where spaces were cleared: what lies before that in the segments is forgotten also by the next life.

One small file beside the segments, replaced as a whole: a crash leaves the old one or the new one. It says everything twice, so
that a damaged byte takes nothing from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import xxhash

from kvtier.store.page import SsdPlace

FILE_NAME = "cleared"
_MAGIC = b"LBKVCLR1"
_CHECKSUM_BYTES = 8


class BrokenClears(Exception):
    """Neither half of the file is what was written: the disk has changed it."""


def read_clears(directory: Path) -> dict[bytes, SsdPlace]:
    """By space digest. Raises `BrokenClears` and OSError."""
    try:
        data = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    half = len(data) // 2
    body = next((body for copy in (data[:half], data[half:], data) if (body := _body(copy)) is not None), None)
    if body is None:
        raise BrokenClears(f"{directory / FILE_NAME} is damaged: what was cleared cannot be told")
    return msgspec.msgpack.decode(body, type=dict[bytes, SsdPlace])


def _body(copy: bytes) -> bytes | None:
    """Of one copy; None where it is damaged."""
    start = len(_MAGIC) + _CHECKSUM_BYTES
    whole = copy[: len(_MAGIC)] == _MAGIC and copy[len(_MAGIC) : start] == xxhash.xxh3_64_digest(copy[start:])
    return copy[start:] if whole else None


def forget_clears(directory: Path) -> None:
    """Raises OSError."""
    (directory / FILE_NAME).unlink()


def write_clears(directory: Path, clears: Mapping[bytes, SsdPlace]) -> None:
    """On the device when it returns. Raises OSError; then the old ones hold."""
    body = msgspec.msgpack.encode(clears)
    path, fresh = directory / FILE_NAME, directory / f"{FILE_NAME}.new"
    with fresh.open("wb") as file:
        file.write((_MAGIC + xxhash.xxh3_64_digest(body) + body) * 2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
