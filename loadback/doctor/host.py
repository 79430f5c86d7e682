"""Looks at the host that the gateway runs on: its limits, and where what is learned is kept."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from loadback.doctor.check import Check, ok, warn

FILES_APART_FROM_TURNS = 256


def check_file_limit(turns: int) -> Check:
    """Each running turn holds up to three sockets: its client's and two engines'."""
    return judge_file_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0], turns)


def judge_file_limit(limit: int, turns: int) -> Check:
    wanted = 3 * turns + FILES_APART_FROM_TURNS
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return ok("this host", "open files", f"{limit} allowed, {wanted} needed for {turns} turns at once")
    fix = f"ulimit -n {wanted} (LimitNOFILE= in a unit, nofile in limits.conf), or lower `max_running_turns`"
    return warn("this host", "open files", f"{limit} allowed, {wanted} needed for {turns} turns at once", fix)


def check_calibration_path(path: str) -> list[Check]:
    """None where nothing is to be kept. A file is replaced, so that its folder must be writable."""
    if not path:
        return []
    file = Path(path).absolute()
    folder = file.parent
    if not folder.is_dir():
        fault = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        fault = f"this user may not write to {folder}"
    elif file.exists() and not file.is_file():
        fault = f"{file} is no file"
    else:
        return [ok("this host", "calibration", f"kept in {file}")]
    return [warn("this host", "calibration", f"{fault}: what is learned is lost with the process", "correct calibration.path")]
