"""Every script says what it does when asked, and does nothing else then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from source_tree import ROOT

SCRIPTS = [path for path in (ROOT / "scripts").rglob("*") if path.is_file() and os.access(path, os.X_OK)]


def header(script: Path) -> list[str]:
    lines = script.read_text(encoding="utf-8").splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_help_is_the_header(script: Path) -> None:
    told = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=10)
    assert header(script)
    assert told.stdout.splitlines() == header(script)


def test_too_little_disk_is_told() -> None:
    room = ROOT / "scripts" / "room"
    told = subprocess.run([room, "1000000000000", ".venv-x"], capture_output=True, text=True, check=False, timeout=10)
    assert told.returncode == 1
    assert told.stderr.startswith(f".venv-x needs 1000000000000 MB of free disk in {ROOT}, and there are ")
    subprocess.run([room, "0", ".venv-x"], check=True, timeout=10)
