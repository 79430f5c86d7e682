"""Runs the load generator once and reads what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.overhead.machine import LOAD_CORE, raise_priority
from engine_adapters.launch.tether import tether

_BOTH_CORES = 2.0
_DRAIN_S = 30.0  # it waits up to 12 s for its last replies, and the machine may be slow


class LoadError(Exception):
    """The load generator failed or did not end."""


class LoadResult(msgspec.Struct, frozen=True):
    """One run. CPU and RSS are the router's whole process tree; latencies are microseconds, -1 where there are none."""

    secs: float
    done: int
    rps: float
    errors: int
    cpu_s: float
    rss_max_mb: float
    rss_end_mb: float
    other_core0: float  # share of the core that neither router, workers nor load took
    other_core1: float
    lat_p50_us: float
    lat_p99_us: float
    cpu_ms_per_req: float | None = None
    sticky: float | None = None  # share of later turns that went to the worker of the turn before
    workers: int | None = None  # that served anything
    chunks: int | None = None
    short_streams: int | None = None
    cpu_s_per_m_chunks: float | None = None
    transit_p50_us: float | None = None  # a chunk's way through the router
    transit_p99_us: float | None = None

    @property
    def noise(self) -> float:
        """Share of a core that other processes took from the two that were measured on: all, where nothing came through."""
        if not (self.done or self.chunks):
            return _BOTH_CORES
        return max(0.0, self.other_core0) + max(0.0, self.other_core1)


class Target(msgspec.Struct, frozen=True):
    """What is loaded: a URL, the process whose CPU and memory count, and the mock workers behind it."""

    url: str
    pid: int
    workers_pid: int


def run_load(program: Path, target: Target, options: Sequence[str], limit_s: float) -> LoadResult:
    """One run of at most `limit_s` plus its drain. Raises LoadError."""
    command = ["taskset", "-c", str(LOAD_CORE), str(program), *options]
    command += ["--url", target.url, "--pid", str(target.pid), "--mock-pid", str(target.workers_pid)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=tether()
    )
    raise_priority(process.pid)
    try:
        output, complaints = process.communicate(timeout=limit_s + _DRAIN_S)
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"the load generator did not end within {limit_s + _DRAIN_S:g} s") from error
    finally:
        process.kill()
        process.wait()
    try:
        return msgspec.json.decode(output, type=LoadResult)
    except msgspec.DecodeError as error:
        raise LoadError(f"the load generator failed: {complaints.decode(errors='replace')[:500]}") from error
