"""What the overhead benchmark keeps of its runs, and how it tells it."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from bench.overhead.experiment import Outcome
from bench.overhead.load import LoadResult
from bench.overhead.loads import LOADS, Load, Part
from bench.overhead.machine import busiest_share, core_times
from bench.overhead.peers import PEERS, Peer
from bench.overhead.report import as_json, tables

QUIET = LoadResult(
    secs=2.0,
    done=100,
    rps=50.0,
    errors=0,
    cpu_s=0.5,
    rss_max_mb=120.0,
    rss_end_mb=110.0,
    other_core0=-0.1,
    other_core1=0.05,
    lat_p50_us=1500.0,
    lat_p99_us=9000.0,
    cpu_ms_per_req=0.2,
    sticky=1.0,
    workers=4,
    chunks=1000,
    short_streams=0,
    cpu_s_per_m_chunks=17.5,
    transit_p50_us=700.0,
    transit_p99_us=3000.0,
)


def outcomes(*names: str, **changes: float) -> dict[Peer, Outcome]:
    run = msgspec.structs.replace(QUIET, **changes)
    return {peer: Outcome(dict.fromkeys(LOADS, run)) for peer in PEERS if peer.name in names}


def test_every_part_has_its_figures() -> None:
    parts = as_json(outcomes("loadback", "smg_pd"))
    assert list(parts) == ["small", "agent", "sse1000", "rss"]
    for peers in parts.values():
        assert list(peers) == ["loadback", "smg_pd"]
    own = {part: peers["loadback"] for part, peers in parts.items()}
    assert {key: own["small"][key] for key in ("cpu_ms", "p50_ms", "p99_ms")} == {"cpu_ms": 0.2, "p50_ms": 1.5, "p99_ms": 9.0}
    assert own["agent"]["cpu_ms"] == 0.2
    assert {key: own["sse1000"][key] for key in ("cpu_s_per_m", "p50_ms")} == {"cpu_s_per_m": 17.5, "p50_ms": 0.7}
    assert own["rss"]["mb"] == 120.0


def test_latency_over_direct() -> None:
    found = outcomes("loadback") | outcomes("direct", lat_p50_us=300.0)
    parts = as_json(found)
    assert parts["agent"]["loadback"]["added_p50_ms"] == pytest.approx(1.2)
    assert "added_p50_ms" not in parts["agent"]["direct"]
    assert "cpu_ms" not in parts["agent"]["direct"]  # that is the workers' own


def test_who_is_left_out_says_why() -> None:
    nginx = next(peer for peer in PEERS if peer.name == "nginx")
    parts = as_json({nginx: Outcome(skipped="nginx is not installed")})
    assert parts["small"]["nginx"] == {"skipped": "nginx is not installed"}
    console = Console(file=io.StringIO(), width=140)
    for table in tables({nginx: Outcome(skipped="nginx is not installed")}):
        console.print(table)
    assert console.file.getvalue().count("nginx is not installed") == len(Part)


def test_errors_and_noise_are_told() -> None:
    entry = as_json(outcomes("loadback", errors=3))["small"]["loadback"]
    assert entry["errors"] == 6  # of both of its runs
    assert entry["noise"] == 0.05  # a negative share is a rounding of ticks


def test_a_run_in_which_nothing_came_through_is_no_quiet_one() -> None:
    assert msgspec.structs.replace(QUIET, done=0, chunks=None).noise > QUIET.noise
    assert msgspec.structs.replace(QUIET, done=0).noise == QUIET.noise  # its streams have not ended


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_every_run_is_bounded(load: Load) -> None:
    options, limit_s = load.command(6.0)
    assert "--secs" in options
    assert limit_s < 300


def test_core_times() -> None:
    before = core_times("cpu  9 9 9 9\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 1\n")
    after = core_times("cpu  9 9 9 9\ncpu0 20 0 10 170 0 0 0 0 0 0\ncpu1 30 0 0 140 30 0 0 0 0 0\n")
    assert set(before) == {0, 1}
    assert busiest_share(before, after) == pytest.approx(0.3)
