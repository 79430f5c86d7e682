"""Where a buffer's bytes lie, also of a buffer that may only be read, which ctypes alone does not tell."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SIMPLE = 0  # PyBUF_SIMPLE: contiguous bytes
_WRITABLE = 1


class Extent(NamedTuple):
    address: int
    length: int

    def overlaps(self, other: Extent) -> bool:
        ends = (self.address + self.length, other.address + other.length)
        return bool(self.length and other.length) and self.address < ends[1] and other.address < ends[0]


class _View(ctypes.Structure):
    """Py_buffer, as CPython 3.11 and later lay it out."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


@contextmanager
def extent_of(buffer: Buffer, *, writable: bool) -> Iterator[Extent]:
    """Held in place while the context lasts. Raises TypeError for what is no contiguous buffer, or may not be written."""
    view = _View()
    flags = _WRITABLE if writable else _SIMPLE
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), flags)
    except (BufferError, TypeError) as error:
        raise TypeError(f"{type(buffer).__name__} is no contiguous{' writable' if writable else ''} buffer: {error}") from error
    try:
        yield Extent(view.buf or 0, view.len)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
