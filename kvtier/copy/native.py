"""Copies by loadback-hip where that is installed. The one place that asks whether it is."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from kvtier.copy.base import Move, PageCopies
from kvtier.copy.portable import PortableCopies

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _PageCopier(Protocol):
    """`loadback_hip.PageCopier`, as far as it is used here."""

    def gather(self, packed: Buffer, pool: Buffer, pages: Buffer, page_bytes: int) -> None: ...
    def scatter(self, pool: Buffer, packed: Buffer, pages: Buffer, page_bytes: int) -> None: ...
    def move(self, to: Buffer, from_: Buffer, lengths: Buffer) -> None: ...


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


class NativeCopies:
    native = True

    def __init__(self, copier: _PageCopier) -> None:
        self._copier = copier

    def gather(self, packed: Buffer, pool: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        self._copier.gather(packed, pool, array("q", pages), _positive(page_bytes))

    def scatter(self, pool: Buffer, packed: Buffer, pages: Sequence[int], page_bytes: int) -> None:
        self._copier.scatter(pool, packed, array("q", pages), _positive(page_bytes))

    def move(self, moves: Sequence[Move]) -> None:
        to, from_, lengths = zip(*moves, strict=True) if moves else ((), (), ())
        self._copier.move(array("q", to), array("q", from_), array("q", lengths))


def _positive(page_bytes: int) -> int:
    if page_bytes < 1:
        raise ValueError("page_bytes must be above 0")
    return page_bytes
