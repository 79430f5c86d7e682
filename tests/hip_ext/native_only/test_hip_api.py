"""The Python API: arrays of other libraries, the interpreter's lock, refused choices, and stubs that tell the truth."""

from __future__ import annotations

import ast
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import loadback_hip
import numpy as np
import pytest
from loadback_hip import FileTransfers, HostBuffer, PageCopier, _native

STUB = Path(loadback_hip.__file__).with_name("_native.pyi")


class OnlyDLPack:
    """An array as torch hands it over: by DLPack alone, without the buffer protocol."""

    def __init__(self, wrapped: np.ndarray) -> None:
        self._wrapped = wrapped

    def __dlpack__(self, **options: Any) -> object:
        return self._wrapped.__dlpack__(**options)

    def __dlpack_device__(self) -> object:
        return self._wrapped.__dlpack_device__()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_arrays_by_dlpack(dtype: str) -> None:
    copier = PageCopier()
    pool = np.arange(6 * 32).astype(dtype).reshape(6, 4, 8)
    packed = np.zeros((3, 4, 8), dtype)
    copier.gather(OnlyDLPack(packed), OnlyDLPack(pool), np.array([5, 0, 2]), pool[0].nbytes)
    assert (packed == pool[[5, 0, 2]]).all()
    back = np.zeros_like(pool)
    copier.scatter(back, packed, array("q", [5, 0, 2]), pool[0].nbytes)
    assert (back[[5, 0, 2]] == packed).all()
    assert not back[[1, 3, 4]].any()


def test_arrays_that_are_refused() -> None:
    copier, pool = PageCopier(), np.zeros((4, 64), "uint8")
    with pytest.raises(TypeError):
        copier.gather(np.zeros((64, 4), "uint8").T, pool, np.array([0]), 64)  # not contiguous
    with pytest.raises(TypeError):
        copier.gather(pool.copy(), pool, np.array([0], "float64"), 64)
    frozen = np.zeros(64, "uint8")
    frozen.flags.writeable = False
    with pytest.raises(TypeError):
        copier.gather(frozen, pool, np.array([0]), 64)


def test_hashed_pages_are_laid_out_as_said() -> None:
    copier, pool, digests = PageCopier(), np.zeros(1000, "uint8"), bytearray(32)
    pieces = np.arange(600, dtype="uint8") * 7
    addresses = pieces.ctypes.data + np.array([0, 300, 100, 450])  # keys and values of two pages
    copier.put_hashed(pool, np.array([5, 500]), addresses, np.array([100, 150]), digests)
    assert (pool[5:255] == np.concatenate([pieces[:100], pieces[300:450]])).all()
    assert (pool[500:750] == np.concatenate([pieces[100:200], pieces[450:600]])).all()
    assert not pool[:5].any()
    assert not pool[255:500].any()
    again = bytearray(32)
    pieces[:] = 0
    copier.get_hashed(pool, np.array([5, 500]), addresses, np.array([100, 150]), again)
    assert again == digests
    assert (pieces[450:600] == pool[600:750]).all()


@pytest.mark.parametrize(
    ("offsets", "pieces", "piece_bytes", "digests", "why"),
    [
        ([701], [0], [300], 16, "do not lie in a pool of 1000"),
        ([-1], [0], [300], 16, "do not lie in a pool of 1000"),
        ([0], [0], [1001], 16, "do not lie in a pool of 1000"),
        ([0], [0, 300], [300], 16, "2 pieces are not 1 for each of 1 pages"),
        ([0], [0], [240], 16, "a page of 240 bytes"),
        ([0], [0, 300], [400, -100], 16, "a length is below 0"),
        ([0], [0], [300], 15, "digests takes 16 bytes"),
        ([0, 299], [0, 300], [300], 32, "two moves write the same bytes"),
    ],
)
def test_hashed_pages_that_are_refused(
    offsets: list[int], pieces: list[int], piece_bytes: list[int], digests: int, why: str
) -> None:
    own, pool = np.zeros(1000, "uint8"), np.full(1000, 9, "uint8")
    addresses = own.ctypes.data + np.array(pieces)
    with pytest.raises(ValueError, match=why):
        PageCopier().put_hashed(pool, np.array(offsets), addresses, np.array(piece_bytes), bytearray(digests))
    assert (pool == 9).all()


def test_a_host_buffer_is_an_array() -> None:
    buffer = HostBuffer.create(1 << 20)
    view = np.frombuffer(memoryview(buffer), "uint8")
    PageCopier().gather(buffer, np.full(1 << 20, 7, "uint8"), np.array([0]), 1 << 20)
    assert (view == 7).all()


def test_others_run_while_bytes_move() -> None:
    pool, packed = HostBuffer.create(64 << 20), HostBuffer.create(64 << 20)
    copier, pages = PageCopier(1), array("q", range(64))
    done = threading.Event()
    turns = 0

    def copy() -> None:
        for _ in range(5):
            copier.gather(packed, pool, pages, 1 << 20)
        done.set()

    thread = threading.Thread(target=copy)
    thread.start()
    while not done.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    assert turns > 5  # with the lock held there would be one turn a copy at most


@pytest.mark.parametrize("threads", [0, 257])
def test_threads_are_bounded(threads: int) -> None:
    with pytest.raises(ValueError, match="threads must be 1 to 256"):
        PageCopier(threads)


def test_choices() -> None:
    assert PageCopier(isa="portable").isa == "portable"
    assert PageCopier(3).threads == 3
    assert PageCopier(isa="auto").isa in loadback_hip.isas()
    with pytest.raises(ValueError, match="isa is auto, portable, avx2 or avx512, not sse"):
        PageCopier(isa="sse")
    with pytest.raises(ValueError, match="way is auto, uring or threads"):
        FileTransfers(way="mmap")
    for depth in (0, 1025):
        with pytest.raises(ValueError, match="depth must be 1 to 1024"):
            FileTransfers(depth, way="threads")
    assert FileTransfers(way="threads").way == "threads"
    with pytest.raises(ValueError, match="no such CPU"):
        PageCopier(2, cpus=[-1])


def stub_names(tree: ast.Module | ast.ClassDef) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_stubs_name_what_is_there() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    only_typing = {"SupportsDLPack", "Array", "Int64Array"}
    assert stub_names(tree) - only_typing == {name for name in vars(_native) if not name.startswith("_")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name not in only_typing:
            real = {name for name in vars(getattr(_native, node.name)) if not name.startswith("_")}
            assert {name for name in stub_names(node) if not name.startswith("_")} == real, node.name


def test_everything_public_is_described() -> None:
    for name in loadback_hip.__all__:
        assert getattr(loadback_hip, name).__doc__, name
