"""The C++ programs: transfers over a misbehaving queue, and many callers and restores under the sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Compile = Callable[..., Path]


@pytest.mark.slow
def test_transfers_over_a_faulty_queue(compiled: Compile) -> None:
    program = compiled("faulty_queue_test.cpp", "core/transfer.cpp", flags=("-fsanitize=address,undefined",))
    subprocess.run([program], check=True, timeout=60)


@pytest.mark.slow
def test_a_table_of_ids(compiled: Compile) -> None:
    program = compiled("id_table_test.cpp", "core/id_table.cpp", flags=("-fsanitize=address,undefined",))
    subprocess.run([program], check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_many_callers(compiled: Compile, sanitized: dict[str, str], tmp_path: Path, sanitizer: str) -> None:
    program = compiled("stress_test.cpp", "core/*.cpp", flags=(f"-fsanitize={sanitizer}",))
    ran = subprocess.run(["nice", program, tmp_path / "file"], capture_output=True, text=True, timeout=200, env=sanitized)
    assert ran.returncode == 0, ran.stderr
    assert "WARNING: ThreadSanitizer" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_many_restores(compiled: Compile, sanitized: dict[str, str], sanitizer: str) -> None:
    flags = (f"-fsanitize={sanitizer}",)
    double = compiled("fake_hip.cpp", flags=("-shared", "-fPIC", *flags))
    program = compiled("loadback_stress_test.cpp", "gpu/*.cpp", flags=flags)
    ran = subprocess.run(["nice", program, double], capture_output=True, text=True, timeout=200, env=sanitized)
    assert ran.returncode == 0, ran.stderr
    assert "WARNING: ThreadSanitizer" not in ran.stderr
