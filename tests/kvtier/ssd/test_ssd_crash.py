"""A writer that is killed loses nothing it had been told is written, and a device that is full is an answer, not a crash."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssd_pages import content, digest, read
from ssd_writer import GROUP_PAGES, PAGE_BYTES, SEGMENT_BYTES

from kvtier.page.checksum import page_checksum
from kvtier.ssd.segments import SsdSegments
from kvtier.store.page import SsdPlace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WRITER = Path(__file__).parent / "ssd_writer.py"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(WRITER), "write", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 20])
def test_a_killed_writer_loses_only_what_it_was_writing(tmp_path: Path, writer: subprocess.Popen[str], groups: int) -> None:
    assert writer.stdout is not None
    for _ in range(groups):
        written = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    told = [int(line) for line in writer.stdout.read().split()] or [written]
    segments = SsdSegments(tmp_path, SEGMENT_BYTES, 1000)
    found = segments.recovered.pages
    assert len(found) >= told[-1]
    for number, each in enumerate(found):
        record = each.record
        bytes_read = read(segments, SsdPlace(each.segment, record.offset), record.length)
        assert record.digest == digest(number)
        assert bytes_read is not None
        assert page_checksum(bytes_read) == record.checksum
        assert bytes_read == content(number, PAGE_BYTES)
    assert len(found) <= told[-1] + GROUP_PAGES
    segments.close()


def in_a_small_device(command: str, megabytes: int) -> str:
    """Run a shell command where $DEVICE is a fresh tmpfs of that size, in a mount namespace of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = f'set -e; DEVICE=$(mktemp -d); mount -t tmpfs -o size={megabytes}m none "$DEVICE"; {command}'
    done = subprocess.run(["unshare", "--mount", *user, "sh", "-c", script], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_device_is_an_answer_and_room_is_used_again() -> None:
    said = in_a_small_device(f'{sys.executable} {WRITER} fill "$DEVICE"', megabytes=5)
    full = re.search(r"full after (\d+): no 1 MiB left .*No space left", said)
    assert full, said
    assert int(full[1]) >= 4 * (SEGMENT_BYTES // PAGE_BYTES - 1)  # four whole segments; the fifth had no room
    intact = re.search(r"intact (\d+) of (\d+), then segment (\d+)", said)
    assert intact, said
    assert intact[1] == intact[2] != "0"
    assert f"recovered {int(intact[1]) + 1}" in said
