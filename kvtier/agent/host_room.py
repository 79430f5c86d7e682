"""Whether an agent's paths and sizes fit its host: L3 in memory that this process may have, L4 on the disk of its directory, in
as many files as it may open."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from kvtier.agent.config import AgentConfig
from kvtier.agent.places import directory_fault, may_write, nearest, socket_fault
from kvtier.pool.backing import Backing

_ROOT = Path("/")
_OTHER_FILES = 64  # beside segments: sockets, connections, the memory file


def wrong_places(config: AgentConfig) -> list[str]:
    """One line for each path that no user could make use of."""
    faults = {"socket": socket_fault(Path(config.socket))}
    if config.ssd is not None:
        faults["ssd.directory"] = directory_fault(Path(config.ssd.directory))
    return [f"{key}: {fault}" for key, fault in faults.items() if fault]


def shut_places(config: AgentConfig) -> list[str]:
    """Warnings only: the agent may be started by another user than asks."""
    folders = {"socket": Path(config.socket).parent}
    if config.ssd is not None:
        folders["ssd.directory"] = Path(config.ssd.directory)
    return [
        f"warning: {key}: this user may not write to {nearest(folder)}"
        for key, folder in folders.items()
        if not may_write(folder)
    ]


def too_much_memory(config: AgentConfig, root: Path = _ROOT) -> list[str]:
    """One line where L3 is larger than the host's memory, or than the cgroup's, which reserved huge pages do not count in."""
    wanted, total = config.dram.bytes, memory_bytes(root)
    if total is not None and wanted > total:
        return [f"dram.bytes: {_gib(wanted)} of DRAM, but this host has {_gib(total)}: lower it, and leave room for engines"]
    allowed = None if config.dram.backing is Backing.HUGETLB else cgroup_bytes(root)
    if allowed is not None and wanted > allowed:
        return [f"dram.bytes: {_gib(wanted)} of DRAM, but the cgroup allows {_gib(allowed)}: lower it, or raise memory.max"]
    return []


def too_little_free(config: AgentConfig, root: Path = _ROOT) -> list[str]:
    """One line where L3 is to be taken at the start and is not free now: the kernel would end processes to find it."""
    told = _meminfo(root)
    free = told.get("MemAvailable", 0) + told.get("SwapFree", 0) + told.get("HugePages_Free", 0) * told.get("Hugepagesize", 0)
    if (
        not config.dram.prefault
        or config.dram.backing is Backing.HUGETLB
        or "MemAvailable" not in told
        or config.dram.bytes <= free
    ):
        return []
    what = f"dram.bytes: {_gib(config.dram.bytes)} of DRAM to be taken at the start, but {_gib(free)} of this host's is free"
    return [f"{what}: lower it, or end what else runs"]


def too_little_disk(config: AgentConfig) -> list[str]:
    """A warning only: a file system may grow, or say less than it has."""
    if config.ssd is None:
        return []
    held = disk_bytes(Path(config.ssd.directory))
    if config.ssd.bytes <= held:
        return []
    return [
        f"warning: ssd.bytes: {_gib(config.ssd.bytes)} of SSD, but the file system of {config.ssd.directory} holds "
        f"{_gib(held)}: lower it, or pages are lost when it is full"
    ]


def too_few_files(config: AgentConfig) -> list[str]:
    """One line where the segments, each of which is an open file, leave no descriptors for those who come in."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    segments = config.ssd.bytes // config.ssd.segment_bytes if config.ssd is not None else 0
    if allowed == resource.RLIM_INFINITY or not segments or segments + _OTHER_FILES <= allowed:
        return []
    what = f"ssd.segment_bytes: {segments:,} segments are open files, beside {_OTHER_FILES} others, and {allowed:,} are allowed"
    return [f"{what}: make them larger, or raise the hard limit (ulimit -Hn)"]


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Of the host; None where the kernel does not say."""
    return _meminfo(root).get("MemTotal")


def cgroup_bytes(root: Path = _ROOT) -> int | None:
    """The tightest limit of this process's cgroup and those above it, of version 1 or 2; None without one."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def disk_bytes(directory: Path) -> int:
    """Of the file system that a directory is on, or will be once it is made."""
    told = os.statvfs(nearest(directory))
    return told.f_frsize * told.f_blocks


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes, and counts of huge pages."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ").split() for line in lines]
    return {name: int(number) << (10 if unit else 0) for name, number, *unit in words}


def _limits(top: Path, path: str, name: str) -> list[int]:
    """A container may see its own cgroup as the top one and not by the path it is told."""
    folder = top / path.lstrip("/")
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]
    said = [(each / name).read_text(encoding="ascii").strip() for each in folders if (each / name).is_file()]
    return [int(limit) for limit in said if limit.isdigit()]


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
