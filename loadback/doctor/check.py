"""One thing that was looked at, what was found and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from costmodel.values import Role
from engine_adapters.base import Endpoint, EngineKind


class Mark(StrEnum):
    OK = "OK"
    WARN = "WARN"  # the gateway works, but decides worse
    FAIL = "FAIL"  # turns will fail


@dataclass(frozen=True, slots=True)
class Check:
    subject: str  # a worker, a pool, "gateway" or "this host"
    name: str
    mark: Mark
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """One engine to look at, from a configuration or from a running gateway's list."""

    name: str
    pool: str
    role: Role
    kind: EngineKind
    endpoint: Endpoint
    bootstrap_host: str | None = None


def ok(subject: str, name: str, found: str) -> Check:
    return Check(subject, name, Mark.OK, found)


def warn(subject: str, name: str, found: str, fix: str) -> Check:
    return Check(subject, name, Mark.WARN, found, fix)


def fail(subject: str, name: str, found: str, fix: str) -> Check:
    return Check(subject, name, Mark.FAIL, found, fix)
