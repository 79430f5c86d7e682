"""Process-wide settings, tried in a process of their own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.slow
def test_freed_pages_stay_where_glibc_is() -> None:
    code = (
        "import resource; from router.wire.process import keep_freed_pages; print(keep_freed_pages());"
        "[bytes(400_000) for _ in range(50)];"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt;"
        "[bytes(400_000) and None for _ in range(1000)];"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    told, faults = run(code).split()
    if platform.libc_ver()[0] == "glibc":
        assert told == "True"
        assert int(faults) < 10_000  # of 98 pages a body; given back each time it would be 98,000
    else:
        assert told in ("True", "False")
