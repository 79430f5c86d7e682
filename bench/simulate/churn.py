"""Workers that are lost or join while a run goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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


def require_known(workers: Mapping[WorkerKey, Role], changes: Sequence[Change], horizon_s: float) -> None:
    """Raises `ValueError` for a worker that is lost without being there, is the last of its role, or joins beside itself, for
    one of a role that the pool does not have, and for a change that no call would see."""
    there = dict(workers)
    roles = set(workers.values())
    for change in sorted(changes, key=lambda each: each.at_s):
        if change.joins == (change.worker in there):
            what = "joins, but is there already" if change.joins else "is lost, but is not there"
            names = ", ".join(sorted(worker.worker_id for worker in there))
            raise ValueError(f"{change.worker.worker_id} {what} at {change.at_s:g} s; there are {names}")
        if change.at_s >= horizon_s:
            what = f"{change.worker.worker_id}@{change.at_s:g} comes after the last call"
            raise ValueError(f"{what}: give a longer horizon than {horizon_s:g} s")
        if change.role not in roles:
            raise ValueError(f"{change.worker.worker_id} joins at {change.at_s:g} s a pool that has no {change.role} workers")
        if change.joins:
            there[change.worker] = change.role
            continue
        del there[change.worker]
        if change.role not in there.values():
            raise ValueError(f"no {change.role} worker is left when {change.worker.worker_id} is lost at {change.at_s:g} s")
