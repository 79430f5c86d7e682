"""What a batch of a thousand pages costs an agent in CPU when no byte has to move: a put, and a get with its look."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from kvtier.client.channel import Channel
from kvtier.page.space import PageSpace
from kvtier.wire.messages import Acquire, Acquired, Attach, Attached, Clear, Commit, Look, Release, Reserve, Reserved

_PAGES = 1000
_PAGE_BYTES = 4096
_BATCHES = 50
_DEADLINE_S = 10.0


class ControlCpu(NamedTuple):
    """Of the agent, a batch of a thousand pages."""

    put_ms: float  # reserve and commit
    get_ms: float  # look, lease and release


def control_cpu(socket: Path, pid: int) -> ControlCpu:
    """Of process `pid`, the agent, whose pool holds fifty batches of small pages."""
    channel = Channel(socket, _DEADLINE_S)
    try:
        attached = channel.ask(Attach(PageSpace("control", "bytes", "flat", 16)), _DEADLINE_S)
        assert isinstance(attached, Attached)
        batches = [b"".join(sha256(f"{batch}/{page}".encode()).digest() for page in range(_PAGES)) for batch in range(_BATCHES)]
        before_ms = _cpu_ms(pid)
        for digests in batches:
            reserved = channel.ask(Reserve(attached.space, digests, _PAGE_BYTES), _DEADLINE_S)
            assert isinstance(reserved, Reserved)
            channel.ask(Commit(reserved.write, b"c" * 16 * len(reserved.offsets)), _DEADLINE_S)
        put_ms = _cpu_ms(pid) - before_ms
        for digests in batches:
            channel.ask(Look(attached.space, digests), _DEADLINE_S)
            acquired = channel.ask(Acquire(attached.space, digests, 1000), _DEADLINE_S)
            assert isinstance(acquired, Acquired)
            channel.ask(Release(acquired.lease), _DEADLINE_S)
        get_ms = _cpu_ms(pid) - before_ms - put_ms
        channel.ask(Clear(attached.space), _DEADLINE_S)
        return ControlCpu(put_ms / _BATCHES, get_ms / _BATCHES)
    finally:
        channel.close()


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
