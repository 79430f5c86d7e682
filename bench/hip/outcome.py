"""What was measured, and its JSON. Ratios are medians over rounds; each is taken against a limit measured in its own round."""

from __future__ import annotations

from statistics import median

import msgspec

_DECIMALS = 3


class MemoryOutcome(msgspec.Struct, frozen=True):
    """By way of copying (`ours`, `libc`, `numpy`, `torch`), then by bytes of a page: share of a flat copy's rate."""

    gather: dict[str, dict[int, float]]
    scatter: dict[str, dict[int, float]]
    batch_overhead_us: float  # of a batch of 8 pages of 64 KiB, beyond what a flat copy of its bytes takes
    flat_gb_s: float
    striped_ratio: float  # of a flat copy that walks each piece as four streams, as ours does: what is really within reach
    threads: int
    isa: str


class DiskOutcome(msgspec.Struct, frozen=True):
    """Random reads past the page cache. `ratio`: pages of 1 MiB, as a share of the best rate that any way reached."""

    ratio: float
    cpu_ratio: float  # CPU time a byte, against 32 threads with pread
    ceiling_gb_s: float
    way: str


def as_json(memory: MemoryOutcome, disk: DiskOutcome | None) -> dict[str, object]:
    """`{"gather_ratio": {PAGE_BYTES: RATIO}, "scatter_ratio": {...}, "batch_overhead_us": ..., "ssd_ratio": ..., ...}`"""
    return {
        "gather_ratio": _keys(memory.gather["ours"]),
        "scatter_ratio": _keys(memory.scatter["ours"]),
        "batch_overhead_us": round(memory.batch_overhead_us, 1),
        "ssd_ratio": round(disk.ratio, _DECIMALS) if disk else None,
        "ssd_cpu_ratio": round(disk.cpu_ratio, _DECIMALS) if disk else None,
        "ssd_ceiling_gb_s": round(disk.ceiling_gb_s, _DECIMALS) if disk else None,
        "ssd_way": disk.way if disk else None,
        "flat_gb_s": round(memory.flat_gb_s, _DECIMALS),
        "striped_ratio": round(memory.striped_ratio, _DECIMALS),
        "threads": memory.threads,
        "isa": memory.isa,
        "rivals_gather_ratio": {name: _keys(ratios) for name, ratios in memory.gather.items() if name != "ours"},
        "rivals_scatter_ratio": {name: _keys(ratios) for name, ratios in memory.scatter.items() if name != "ours"},
    }


def medians(samples: dict[str, dict[int, list[float]]]) -> dict[str, dict[int, float]]:
    return {name: {page: median(values) for page, values in pages.items()} for name, pages in samples.items()}


def _keys(ratios: dict[int, float]) -> dict[str, float]:
    return {str(page_bytes): round(ratio, _DECIMALS) for page_bytes, ratio in ratios.items()}
