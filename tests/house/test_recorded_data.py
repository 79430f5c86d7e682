"""What was recorded of real engines and clients says nothing of the machine that it was recorded on."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from source_tree import ROOT

RECORDED = sorted(path for path in (ROOT / "tests" / "data").rglob("*") if path.is_file())
ENVIRONMENT = re.compile(rb"/[\w./-]*/(?:site-packages|\.venv[\w-]*)/")


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_there_are_recordings() -> None:
    assert RECORDED


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(ROOT / "tests" / "data")))
def test_a_recording_names_no_environment_of_its_machine(path: Path) -> None:
    assert not (found := ENVIRONMENT.findall(content(path))), found[:3]


def test_such_a_path_would_be_found() -> None:
    assert ENVIRONMENT.search(b'File "/home/me/project/.venv-sglang/lib/x.py"')
    assert ENVIRONMENT.search(b'File "/usr/lib/python3/site-packages/x.py"')
    assert not ENVIRONMENT.search(b'File "/opt/sglang/srt/http_server.py"')
