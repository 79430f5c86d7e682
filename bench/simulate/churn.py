"""Workers that are lost or join while a run goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from costmodel.values import Role, WorkerKey

LOST, JOINED = "p0@900", "p4@1200"
"""What happens where nothing else is asked for."""

_ROLES = {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}
_CHANGE = re.compile(r"(?P<worker>(?P<role>[pdu])\d+)@(?P<at_s>\d+(\.\d+)?)")


class Change(msgspec.Struct, frozen=True):
    """At `at_s` virtual seconds a worker is lost with its node and all that lies there, or joins with empty caches."""

    at_s: float
    worker: WorkerKey
    role: Role
    joins: bool


def parse_changes(text: str, *, joins: bool) -> tuple[Change, ...]:
    """`p1@600,d0@900`. Raises `ValueError` naming the word that is none."""
    found = []
    for word in text.replace(" ", "").split(","):
        match = _CHANGE.fullmatch(word)
        if match is None and word:
            raise ValueError(f"{word!r} is no change of workers: write p1@600 for prefill worker p1 after 600 s")
        if match is not None:
            key = WorkerKey(match["worker"])
            found.append(Change(float(match["at_s"]), key, _ROLES[match["role"]], joins))
    return tuple(found)


def require_known(workers: Iterable[WorkerKey], changes: Sequence[Change]) -> None:
    """Raises `ValueError` for a worker that is lost without being there, or joins beside itself."""
    there = set(workers)
    for change in sorted(changes, key=lambda each: each.at_s):
        if change.joins == (change.worker in there):
            what = "joins, but is there already" if change.joins else "is lost, but is not there"
            names = ", ".join(sorted(worker.worker_id for worker in there))
            raise ValueError(f"{change.worker.worker_id} {what} at {change.at_s:g} s; there are {names}")
        there ^= {change.worker}
