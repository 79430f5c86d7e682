"""Looks at one engine: does it answer, is it what was configured, are its flags those that matter, is its clock ours."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime

import httpx

from costmodel.values import Role
from engine_adapters.adapters import adapter_for
from engine_adapters.base import AdapterError, EngineInfo, EngineKind
from engine_adapters.control import CONTROL_TIMEOUT_S
from engine_adapters.sglang.contract import Clause, Finding, Need, Verdict, examine
from loadback.admin_api import cause
from loadback.doctor.check import Check, Target, fail, ok, warn

MAX_SKEW_S = 2.0


async def check_engine(http: httpx.AsyncClient, target: Target) -> tuple[EngineInfo | None, list[Check]]:
    """The info is None when the engine did not answer; then nothing else was looked at."""
    try:
        info = await adapter_for(target.kind).discover(http, target.endpoint)
    except AdapterError as error:
        fix = "start it, or correct `url`, `api_key` and `engine` in the configuration"
        return None, [fail(target.name, "engine", str(error), fix)]
    checks = [
        ok(target.name, "engine", f"{info.engine}, models {', '.join(info.models) or 'unknown'}"),
        check_role(target, info),
    ]
    if target.kind is EngineKind.SGLANG:
        checks += check_contract(target.name, examine(info))
    checks.append(await check_clock(http, target))
    return info, checks


def check_role(target: Target, info: EngineInfo) -> Check:
    if info.role is target.role:
        return ok(target.name, "role", info.role.value)
    restart = (
        "without --disaggregation-mode" if target.role is Role.UNIFIED else f"with --disaggregation-mode {target.role.value}"
    )
    fix = f"list it under `{info.role.value}`, or start it {restart}"
    return fail(target.name, "role", f"configured as {target.role.value}, but it says {info.role.value}", fix)


def check_contract(name: str, findings: Sequence[Finding]) -> list[Check]:
    """One line for all that is well, one for each that is not. What the engine does not tell counts as well."""
    missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
    optional = [finding.clause.flag for finding in missing if finding.clause.need is Need.OPTIONAL]
    told = f"{len(findings) - len(missing)} of {len(findings)} as wanted"
    lines = [ok(name, "flags", told + (f"; optional and not set: {', '.join(optional)}" if optional else ""))]
    for finding in missing:
        clause = finding.clause
        if clause.need is Need.REQUIRED:
            lines.append(fail(name, clause.flag, clause.lost, remedy(clause)))
        elif clause.need is Need.WANTED:
            lines.append(warn(name, clause.flag, clause.lost, remedy(clause)))
    return lines


def remedy(clause: Clause) -> str:
    """`wanted` says "absent", "set", "set" with a condition, or a value."""
    flag, _, member = clause.flag.partition(": ")
    first, _, condition = clause.wanted.partition(" ")
    if clause.wanted == "absent":
        return f"start it without {flag}"
    if first == "set":
        return f"start it with {flag}" + (f" ({condition})" if condition else "")
    return f"start it with {flag}, its {member}: {clause.wanted}" if member else f"start it with {flag} {clause.wanted}"


async def check_clock(http: httpx.AsyncClient, target: Target) -> Check:
    before_s = time.time()
    try:
        response = await http.get(target.endpoint.url + "/health", timeout=CONTROL_TIMEOUT_S)
    except httpx.HTTPError as error:
        what = f"/health did not answer: {cause(error, CONTROL_TIMEOUT_S)}"
        return warn(target.name, "clock", what, "look at the engine's log")
    return judge_clock(target.name, response.headers.get("date"), (before_s + time.time()) / 2)


def judge_clock(name: str, date: str | None, now_s: float) -> Check:
    """An HTTP date has whole seconds, cut off: half a second is added."""
    if date is None:
        return ok(name, "clock", "not told (no Date header)")
    skew_s = parsedate_to_datetime(date).timestamp() + 0.5 - now_s
    if abs(skew_s) <= MAX_SKEW_S:
        return ok(name, "clock", "agrees with this host's")
    return warn(name, "clock", f"is {skew_s:+.0f} s off this host's", "run a time service (chrony) on both")


def check_pages(pool: str, infos: Iterable[tuple[str, EngineInfo]]) -> Check:
    """Blocks of different sizes have different hashes: workers with another page size never match."""
    sizes = {name: info.page_size for name, info in infos}
    told = ", ".join(f"{name} {size or 'unknown'}" for name, size in sizes.items())
    if len(set(sizes.values())) > 1:
        return fail(pool, "page size", f"differs: {told}", "start all workers of the pool with one --page-size")
    return ok(pool, "page size", str(next(iter(sizes.values()), 0) or "unknown"))
