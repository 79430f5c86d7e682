"""The two cores that an experiment uses, and how much of them others take. Linux only: everything is read from /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROUTER_CORE = 0
LOAD_CORE = 1
_QUIET_SHARE = 0.15
_GLANCE_S = 0.3
_RAISED = "-15"


class MachineError(Exception):
    """This machine cannot run the experiment. The message says why."""


class CoreTime(NamedTuple):
    busy: int
    total: int


def check_cores() -> None:
    if not {ROUTER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise MachineError(f"needs cores {ROUTER_CORE} and {LOAD_CORE}: one for the router, one for workers and load")


def core_times(stat: str) -> dict[int, CoreTime]:
    """Ticks per core from the text of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    times = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(field) for field in fields[:8]]
            times[int(name[3:])] = CoreTime(sum(ticks) - ticks[3] - ticks[4], sum(ticks))
    return times


def busiest_share(before: dict[int, CoreTime], after: dict[int, CoreTime]) -> float:
    """How busy the busier of the two cores was in between, 0 to 1."""
    shares = []
    for core in (ROUTER_CORE, LOAD_CORE):
        total = after[core].total - before[core].total
        shares.append((after[core].busy - before[core].busy) / total if total else 0.0)
    return max(shares)


def wait_for_quiet(limit_s: float) -> None:
    """Return once both cores idle, or after `limit_s`: on a shared machine that may never be."""
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        before = core_times(_stat())
        time.sleep(_GLANCE_S)
        if busiest_share(before, core_times(_stat())) < _QUIET_SHARE:
            return


def raise_priority(pid: int) -> None:
    """Put one process group of the experiment before other sessions' work. Without the right to do so nothing happens.

    With the scheduler's autogroups a plain nice value has no effect across sessions; the group's own has.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(_RAISED)


def _stat() -> str:
    return Path("/proc/stat").read_text()
