"""What packages of a real engine's environment carry: HIP's own headers, Triton's interpreter and its AMD compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import loadback_hip
import pytest

ROOT = Path(__file__).parents[3]
ENGINE_PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
TWIN = Path(loadback_hip.__file__).parent / "kernels" / "triton_pages.py"
TWIN_PROGRAM = Path(__file__).with_name("triton_twin.py")


def headers() -> Path:
    """Those that Triton's wheel carries."""
    return next((ROOT / ".venv-sglang").glob("lib/python3*/site-packages/triton/backends/amd/include"))


@pytest.mark.engines
def test_the_table_is_what_hips_headers_declare(compiled: Callable[..., Path]) -> None:
    compiled(
        "abi_test.cpp", flags=("-DWITH_BATCH", "-Wno-deprecated-declarations", "-isystem", str(headers()), "-fsyntax-only")
    )


@pytest.mark.engines
@pytest.mark.parametrize("way", ["interpret", "compile"])
def test_the_triton_twin(way: str) -> None:
    ran = subprocess.run(
        ["nice", ENGINE_PYTHON, TWIN_PROGRAM, way, TWIN], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "ok" in ran.stdout.split()
