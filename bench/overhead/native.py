"""Builds the mock workers and the load generator, which are C so that they are never what is measured."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

_SOURCES = Path(__file__).parent / "native"
_BUILD_TIMEOUT_S = 120.0


class BuildError(Exception):
    """The programs could not be built. The message says what to do."""


class Programs(NamedTuple):
    mock_workers: Path
    load_generator: Path


def build(folder: Path) -> Programs:
    """Compile both into `folder`; takes about a second. Raises BuildError."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("no C compiler found: apt-get install gcc libc6-dev")
    return Programs(_compile(compiler, "mock_workers", folder), _compile(compiler, "load_generator", folder))


def _compile(compiler: str, name: str, folder: Path) -> Path:
    program = folder / name
    command = [compiler, "-O2", "-o", str(program), str(_SOURCES / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed (are the C headers there? apt-get install libc6-dev):\n{done.stderr}")
    return program
