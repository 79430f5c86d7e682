"""Ties a child process to its parent: whatever way the parent ends, the kernel kills the child (Linux only).

Given as `preexec_fn` to whoever starts the process. It must be made in the thread that starts it, and that thread must live on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tether() -> Callable[[], None] | None:
    """What the child runs between fork and exec. The library is loaded here, since little is safe to call there."""
    if sys.platform != "linux":
        return None
    return partial(_die_with, ctypes.CDLL(None, use_errno=True).prctl, os.getpid())


def _die_with(prctl: Callable[[int, int], int], parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the kernel was told
        os._exit(1)
