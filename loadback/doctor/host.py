"""Looks at the limits of the host that the gateway runs on."""

from __future__ import annotations

import resource

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
