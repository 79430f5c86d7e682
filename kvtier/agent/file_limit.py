"""How many descriptors a process may have: every connection is one, and every segment file."""

from __future__ import annotations

import resource

_FILES = 65_536  # where the system sets no limit


def raise_file_limit() -> int:
    """Use as many descriptors as the system allows (the usual soft limit is 1024); the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else hard
    if soft < wanted and soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
