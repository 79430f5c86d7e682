"""C++ programs of these tests, compiled once a session against the package's own sources."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

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
        command = ["c++", "-std=c++20", "-O1", "-g", "-pthread", "-Wall", "-Wextra", f"-I{SOURCES}", *flags]
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
