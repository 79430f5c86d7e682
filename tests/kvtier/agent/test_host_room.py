"""Sizes that the host cannot give are refused before anything is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_rig import config_of

from kvtier.agent.config import AgentConfig, parse_config
from kvtier.agent.host_room import cgroup_bytes, disk_bytes, memory_bytes, too_little_disk, too_little_free, too_much_memory
from kvtier.agent.process import run_agent

GIB = 1 << 30


def config(folder: Path, size: str, **parts: Any) -> AgentConfig:
    tree = config_of(folder, **parts)
    tree["dram"]["bytes"] = size
    return parse_config(tree)


def host(root: Path, cgroup: str = "", **limits: str) -> Path:
    """16 GiB of memory, and files by their paths with __ for /."""
    files = {"proc/meminfo": f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\n", "proc/self/cgroup": cgroup}
    for name, text in (files | {name.replace("__", "/"): text for name, text in limits.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_that_the_host_does_not_have_is_refused_with_key_and_fix(tmp_path: Path) -> None:
    root = host(tmp_path / "root")
    assert too_much_memory(config(tmp_path, "16 GiB"), root) == []
    (fault,) = too_much_memory(config(tmp_path, "64 TiB"), root)
    assert fault.startswith("dram.bytes: 65,536.0 GiB of DRAM, but this host has 16.0 GiB: lower it")


@pytest.mark.parametrize(
    ("told", "files"),
    [
        ("0::/a/b\n", {"sys__fs__cgroup__a__memory.max": f"{4 * GIB}\n", "sys__fs__cgroup__a__b__memory.max": "max\n"}),
        ("0::/gone\n", {"sys__fs__cgroup__memory.max": f"{4 * GIB}\n"}),
        ("3:cpu,memory:/a\n", {"sys__fs__cgroup__memory__a__memory.limit_in_bytes": f"{4 * GIB}\n"}),
    ],
)
def test_the_tightest_cgroup_counts_but_for_reserved_huge_pages(tmp_path: Path, told: str, files: dict[str, str]) -> None:
    root = host(tmp_path / "root", told, **files)
    assert cgroup_bytes(root) == 4 * GIB
    assert "the cgroup allows 4.0 GiB" in too_much_memory(config(tmp_path, "5 GiB"), root)[0]
    tree = config_of(tmp_path)
    tree["dram"] |= {"bytes": "5 GiB", "backing": "hugetlb"}
    assert too_much_memory(parse_config(tree), root) == []


@pytest.mark.parametrize(
    ("backing", "prefault", "wanted", "told"),
    [
        (
            "thp",
            True,
            "6 GiB",
            "6.0 GiB of DRAM to be taken at the start, but 5.0 GiB of this host's is free: lower it, or end",
        ),
        ("thp", True, "5 GiB", ""),
        ("auto", False, "6 GiB", ""),
        ("hugetlb", True, "6 GiB", ""),
    ],
)
def test_memory_that_is_taken_at_once_must_be_free(
    tmp_path: Path, backing: str, prefault: bool, wanted: str, told: str
) -> None:
    free = f"MemAvailable: {3 << 20} kB\nSwapFree: {1 << 20} kB\nHugePages_Free: 512\nHugepagesize: 2048 kB\n"
    root = host(tmp_path / "root", proc__meminfo=free)
    tree = config_of(tmp_path)
    tree["dram"] |= {"bytes": wanted, "backing": backing, "prefault": prefault}
    faults = too_little_free(parse_config(tree), root)
    assert [told in fault for fault in faults] == ([True] if told else [])


def test_where_nothing_is_told_nothing_is_refused(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) is cgroup_bytes(tmp_path) is None
    assert too_much_memory(config(tmp_path, "64 TiB"), tmp_path) == too_little_free(config(tmp_path, "64 TiB"), tmp_path) == []


def test_a_disk_that_is_too_small_is_warned_of(tmp_path: Path) -> None:
    held = disk_bytes(tmp_path / "not" / "yet")
    assert held == disk_bytes(tmp_path) > 0
    (line,) = too_little_disk(config(tmp_path, "64 MiB", ssd={"bytes": held + GIB}))
    assert line.startswith("warning: ssd.bytes: ")
    assert too_little_disk(config(tmp_path, "64 MiB", ssd={"bytes": GIB})) == []


def test_an_agent_does_not_start_with_more_than_the_host_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_agent(config(tmp_path, "64 TiB")) == 1
    assert "cannot start: dram.bytes: " in capsys.readouterr().err
