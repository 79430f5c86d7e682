"""Descriptors: as many as the system gives are taken, and more segments than that are refused."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_rig import AgentDidNotStart, AgentProcess, agent_process, config_of, get, put, until

from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient
from kvtier.wire import messages as wire

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
SEGMENTS = 64


def allowed(limit: str) -> list[str]:
    """Words before a command that give it this limit."""
    return ["sh", "-c", f'ulimit {limit} {SEGMENTS}; exec "$@"', "sh"]


def small_segments(folder: Path) -> dict[str, Any]:
    """Segments of 31 pages, so many that each being a file takes all that is allowed."""
    config = config_of(folder, pool_mib=4, ssd={"bytes": f"{2 * SEGMENTS} MiB", "segment_bytes": "1 MiB"})
    config["dram"]["slab_bytes"] = "64 KiB"
    return config


@pytest.mark.slow
def test_the_limit_rises_to_the_hard_one() -> None:
    code = "from kvtier.agent.file_limit import raise_file_limit as r; import resource as s; print(r(), *s.getrlimit(7))"
    said = subprocess.run([*allowed("-Sn"), sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.split() == [str(HARD)] * 3


@pytest.mark.slow
def test_an_agent_with_many_segments_goes_on_answering(
    tmp_path: Path, connect: Callable[..., PageClient], dial: Callable[[Path], Channel]
) -> None:
    config = small_segments(tmp_path)
    with agent_process(config, tmp_path, allowed("-Sn")):
        client, channel = connect(config), dial(Path(config["socket"]))

        def segments() -> float:
            stats = channel.ask(wire.AskStats(), 5.0)
            assert isinstance(stats, wire.Stats)
            return stats.numbers["ssd_segments"]

        for start in range(0, 31 * (SEGMENTS + 8), 31):
            stored = start // 31
            until(lambda: all(put(client, range(start, start + 31))), "room")  # noqa: B023 - called at once
            until(lambda: segments() >= stored - 1, "on SSD")  # noqa: B023
        assert segments() > SEGMENTS
        assert any(get(connect(config), range(31)))


@pytest.mark.slow
def test_more_segments_than_files_are_allowed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentDidNotStart, match=r"ssd\.segment_bytes: 128 segments .* 64 are allowed: make them larger"):
        AgentProcess(small_segments(tmp_path), tmp_path, allowed("-n"))
