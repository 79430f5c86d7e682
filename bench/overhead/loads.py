"""The loads: what each part of the experiment sends, and which figures of a run it keeps. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from bench.overhead.load import LoadResult

_AGENT = ("agent", "--turns", "30", "--start-kb", "20", "--end-kb", "800", "--conc", "32", "--sessions", "100000")
_RSS_LIMIT_S = 240.0


class Part(StrEnum):
    SMALL = "small"
    AGENT = "agent"
    SSE1000 = "sse1000"
    RSS = "rss"


Figures = dict[str, float]


class Load(msgspec.Struct, frozen=True):
    """One run of the load generator. `seconds_share` scales `--seconds`; None: it ends with its work, within `limit_s`."""

    part: Part
    name: str
    options: tuple[str, ...]
    figures: Callable[[LoadResult], Figures]
    seconds_share: float | None
    warm_s: float
    repeated: bool = True  # in every round

    def command(self, seconds: float) -> tuple[tuple[str, ...], float]:
        """The generator's options, and the seconds it may take without its drain."""
        measured_s = _RSS_LIMIT_S if self.seconds_share is None else seconds * self.seconds_share
        warm = ("--ramp-ms", f"{self.warm_s * 1000:.0f}") if self.options[0] == "stream" else ("--warm", f"{self.warm_s:g}")
        return (*self.options, "--secs", f"{measured_s:g}", *warm), measured_s + self.warm_s


def _cpu_of_request(run: LoadResult) -> Figures:
    return {"cpu_ms": run.cpu_ms_per_req or 0.0, "rps": run.rps}


def _latency(run: LoadResult) -> Figures:
    return {"p50_ms": run.lat_p50_us / 1000, "p99_ms": run.lat_p99_us / 1000}


def _agent(run: LoadResult) -> Figures:
    return {"cpu_ms": run.cpu_ms_per_req or 0.0, **_latency(run), "sticky": run.sticky or 0.0, "workers": run.workers or 0}


def _stream(run: LoadResult) -> Figures:
    return {
        "cpu_s_per_m": run.cpu_s_per_m_chunks or 0.0,
        "p50_ms": (run.transit_p50_us or 0.0) / 1000,
        "p99_ms": (run.transit_p99_us or 0.0) / 1000,
        "chunks_per_s": (run.chunks or 0) / run.secs,
        "short_streams": run.short_streams or 0,
    }


def _memory(run: LoadResult) -> Figures:
    return {"mb": run.rss_max_mb, "end_mb": run.rss_end_mb}


LOADS = (
    Load(Part.SMALL, "64 connections", ("small", "--conns", "64", "--size", "300"), _cpu_of_request, 1.0, 1.0),
    Load(Part.SMALL, "400/s", ("small", "--conns", "64", "--size", "300", "--rate", "400"), _latency, 0.5, 1.0),
    Load(Part.AGENT, "40/s", (*_AGENT, "--staggered", "1", "--rate", "40"), _agent, 2.5, 2.0),
    Load(Part.SSE1000, "1000 streams", ("stream", "--conns", "1000", "--chunks", "200"), _stream, 1.0, 1.5),
    Load(
        Part.RSS,
        "2000 sessions",
        ("agent", "--turns", "8", "--start-kb", "20", "--end-kb", "300", "--conc", "32", "--sessions", "2000"),
        _memory,
        None,
        0.0,
        repeated=False,
    ),
)
"""600 MB of unique text in the last one, 2.6 GB sent."""
