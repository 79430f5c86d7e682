"""Whether a path can be what an agent makes of it: a Unix socket, or a directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LONGEST_SOCKET_BYTES = 107  # of `sun_path` in Linux's unix(7), without its end


class CannotStart(Exception):
    """What the agent's file asks for is not to be had here. The message begins with the key."""


def socket_fault(path: Path) -> str:
    """Why no Unix socket may be made there; empty where one may. What an agent that was killed left behind is no fault."""
    size = len(os.fsencode(path))
    if size > _LONGEST_SOCKET_BYTES:
        return f"{path} has {size} bytes, and the path of a Unix socket {_LONGEST_SOCKET_BYTES} at most: choose a shorter one"
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        return f"{path} is there and is no socket: choose another path, or remove it"
    return directory_fault(path.parent)


def directory_fault(path: Path) -> str:
    """Empty where it is a directory, or could be made one."""
    there = nearest(path)
    return "" if there.is_dir() else f"{there} is no directory: choose another path, or remove it"


def may_write(path: Path) -> bool:
    """Whether this user may make things in a directory, or the directory itself."""
    return os.access(nearest(path), os.W_OK | os.X_OK, effective_ids=True)


def nearest(path: Path) -> Path:
    """What there is of a path, as far as this user may see; it may be all of it."""
    while not os.path.lexists(path):
        path = path.parent
    return path
