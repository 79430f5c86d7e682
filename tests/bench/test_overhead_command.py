"""`loadback bench overhead` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "loadback", "bench", "overhead"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--only", "tiny"), ("--peers", "loadback,haproxy"), ("--seconds", "0")])
def test_unknown_words_are_refused(options: tuple[str, ...]) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert options[0] in done.stderr


@pytest.mark.slow
def test_one_part_on_both_kinds_of_pool() -> None:
    done = run("--only", "small", "--peers", "loadback,loadback_pd,direct", "--seconds", "2", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout.splitlines()[-1])
    assert list(parts) == ["small"]
    for name in ("loadback", "loadback_pd"):
        entry = parts["small"][name]
        assert entry["errors"] == 0
        assert entry["cpu_ms"] > 0
        assert 0 < entry["p50_ms"] <= entry["p99_ms"]
    assert "round 1 of 1" in done.stderr
    assert not running("mock_workers")


def running(name: str) -> list[int]:
    """Processes of that program that this test could have left behind: started from its temporary folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"loadback-overhead-" in command and name.encode() in command:
                found.append(int(entry.name))
    return found
