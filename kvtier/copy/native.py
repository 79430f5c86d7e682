"""Copies and file transfers by loadback-hip where that is installed. The one place that asks whether it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from kvtier.copy.base import Move, PageCopies
from kvtier.copy.files import FilePart, FileTransfers, PartOutcome, PortableTransfers
from kvtier.copy.portable import PortableCopies

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _PageCopier(Protocol):
    """`loadback_hip.PageCopier`, as far as it is used here."""

    def gather(self, packed: Buffer, pool: Buffer, pages: Buffer, page_bytes: int) -> None: ...
    def scatter(self, pool: Buffer, packed: Buffer, pages: Buffer, page_bytes: int) -> None: ...
    def move(self, to: Buffer, from_: Buffer, lengths: Buffer) -> None: ...


class _FileTransfers(Protocol):
    """`loadback_hip.FileTransfers`: bytes done and errnos, one of each a part."""

    def read(self, fds: Buffer, offsets: Buffer, addresses: Buffer, lengths: Buffer) -> tuple[list[int], list[int]]: ...
    def write(self, fds: Buffer, offsets: Buffer, addresses: Buffer, lengths: Buffer) -> tuple[list[int], list[int]]: ...


def native_module() -> ModuleType | None:
    """loadback-hip, or None where it is not installed. One that is installed and broken raises ImportError."""
    try:
        return import_module("loadback_hip")
    except ModuleNotFoundError as error:
        if error.name != "loadback_hip":
            raise
        return None


def best_copies(threads: int = 2) -> PageCopies:
    """Native with `threads` (the caller is one of them) where that is installed, else portable."""
    module = native_module()
    return PortableCopies() if module is None else NativeCopies(module.PageCopier(threads))


def best_transfers(depth: int = 64) -> FileTransfers:
    """Native with `depth` requests under way where that is installed, else portable."""
    module = native_module()
    return PortableTransfers() if module is None else NativeTransfers(module.FileTransfers(depth))


class NativeCopies:
    native = True

    def __init__(self, copier: _PageCopier) -> None:
        self._copier = copier

    def gather(self, packed: Buffer, pool: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        self._copier.gather(packed, pool, array("q", pages), _positive(page_bytes))

    def scatter(self, pool: Buffer, packed: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        self._copier.scatter(pool, packed, array("q", pages), _positive(page_bytes))

    def move(self, moves: Sequence[Move]) -> None:
        self._copier.move(*_columns(moves, 3))


class NativeTransfers:
    native = True

    def __init__(self, transfers: _FileTransfers) -> None:
        self._transfers = transfers

    def read(self, parts: Sequence[FilePart]) -> list[PartOutcome]:
        return list(map(PartOutcome, *self._transfers.read(*_columns(parts, 4))))

    def write(self, parts: Sequence[FilePart]) -> list[PartOutcome]:
        return list(map(PartOutcome, *self._transfers.write(*_columns(parts, 4))))


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[array[int]]:
    return [array("q", column) for column in zip(*rows, strict=True)] or [array("q") for _ in range(width)]


def _positive(page_bytes: int) -> int:
    if page_bytes < 1:
        raise ValueError("page_bytes must be above 0")
    return page_bytes
