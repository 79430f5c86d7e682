"""C++ programs of these tests, compiled once a session against the package's own sources."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "hip_ext" / "src"
Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """compiled("x.cpp", "core/*.cpp", flags=...): the program, or with -shared the library."""
    folder = tmp_path_factory.mktemp("compiled")

    def build(program: str, *sources: str, flags: tuple[str, ...] = ()) -> Path:
        target = folder / f"{Path(program).stem}{''.join(flags).replace('/', '_')[-60:]}"
        files = [HERE / "cpp" / program, *(path for pattern in sources for path in sorted(SOURCES.glob(pattern)))]
        command = ["c++", "-std=c++20", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", f"-I{SOURCES}", *flags]
        subprocess.run(["nice", *command, *map(str, files), "-o", str(target), "-ldl"], check=True, timeout=300)
        return target

    return build


@pytest.fixture(scope="session")
def sanitized() -> dict[str, str]:
    """An environment in which the first report of a sanitizer ends the program."""
    return os.environ | {
        "TSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": "detect_leaks=1",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }


class FakeHip:
    """The double of HIP's runtime, and memory that it takes for a device's."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.calls = ctypes.CDLL(self.path)
        self.calls.fake_log.restype = ctypes.c_char_p
        for name in ("fake_peak_bytes", "fake_queued_bytes", "fake_pinned_ranges"):
            getattr(self.calls, name).restype = ctypes.c_size_t
        for name in ("fake_device_memory", "fake_pin"):
            getattr(self.calls, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.calls.fake_reset()

    def device(self, size: int) -> np.ndarray:
        memory = np.zeros(size, "uint8")
        self.calls.fake_device_memory(memory.ctypes.data, size)
        return memory

    def log(self) -> list[str]:
        return self.calls.fake_log().decode().splitlines()

    def count(self, name: str) -> int:
        return int(self.calls.fake_calls(name.encode()))

    def fail(self, name: str, code: int, after: int = 0) -> None:
        self.calls.fake_fail(name.encode(), after, code)


@pytest.fixture(scope="session")
def fake_library(compiled: Compile) -> Path:
    return compiled("fake_hip.cpp", flags=("-shared", "-fPIC"))


@pytest.fixture
def hip(fake_library: Path) -> FakeHip:
    return FakeHip(fake_library)
