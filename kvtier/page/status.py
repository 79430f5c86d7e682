"""What may be answered about a page. What passes is never called a miss."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    OK = 0
    MISS = 1  # not here, and waiting will not bring it
    BUSY = 2  # being written, on its way, or no room now: ask again after the time that comes with it
    MOVED = 3  # handed to the node that comes with it
    CORRUPT = 4  # its bytes did not match their checksum; dropped, never served
    EXISTS = 5  # of a put alone: stored already, nothing to write
    WRITING = 6  # of a put alone: someone else is writing it, nothing to write
