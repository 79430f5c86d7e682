"""Pictures of runs: how TTFT and E2E are spread, what tiers served over time, first calls beside later ones. PNG bytes out.

Needs matplotlib, of the extra `loadback[sim]`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Columns = Mapping[str, Sequence[Any]]
_BUCKETS = 60
_TIERS = ("device_tokens", "host_tokens", "pool_tokens", "disk_tokens")
_NAMES = ("L1", "L2", "L3", "L4", "computed")


def cdf_plot(runs: Mapping[str, Columns], what: str) -> bytes:
    """`what`: ttft or e2e. One curve a run, seconds on a log axis."""
    figure, axes = _figure()
    end = "first_ms" if what == "ttft" else "ended_ms"
    for name, columns in runs.items():
        times = sorted((b - a) / 1000 for a, b in zip(columns["arrived_ms"], columns[end], strict=True))
        if times:
            axes.plot(times, [(i + 1) / len(times) for i in range(len(times))], label=name, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_xlabel(f"{what.upper()}, s")
    axes.set_ylabel("share of turns")
    axes.legend(fontsize=7)
    return _png(figure)


def tiers_plot(columns: Columns, name: str) -> bytes:
    """Prompt tokens by where they came from, in equal spans of time."""
    figure, axes = _figure()
    arrived = columns["arrived_ms"]
    span = max(arrived, default=0.0) / _BUCKETS or 1.0
    stacks = [[0.0] * (_BUCKETS + 1) for _ in _NAMES]
    for row, at in enumerate(arrived):
        bucket = int(at / span)
        cached = [columns[tier][row] for tier in _TIERS]
        for stack, tokens in zip(stacks, [*cached, columns["prompt_tokens"][row] - sum(cached)], strict=True):
            stack[bucket] += tokens / 1e6
    axes.stackplot([i * span / 60_000 for i in range(_BUCKETS + 1)], stacks, labels=_NAMES)
    axes.set_title(name, fontsize=9)
    axes.set_xlabel("min")
    axes.set_ylabel("prompt tokens, M")
    axes.legend(fontsize=7, loc="upper left")
    return _png(figure)


def split_plot(results: Mapping[str, Mapping[str, Any]]) -> bytes:
    """First and later calls of each run: hit beside mean TTFT."""
    figure, axes = _figure(2)
    names = [name for name, found in results.items() if found.get("turns")]
    for axis, keys, label in (
        (axes[0], ("first_call_hit", "later_call_hit"), "hit, share of tokens"),
        (axes[1], ("first_call_ttft_s", "later_call_ttft_s"), "mean TTFT, s"),
    ):
        for offset, key in enumerate(keys):
            heights = [results[name][key] or 0.0 for name in names]
            axis.bar([i + 0.4 * offset for i in range(len(names))], heights, 0.38, label=key.split("_")[0])
        axis.set_xticks([i + 0.2 for i in range(len(names))], names, rotation=60, fontsize=6)
        axis.set_ylabel(label)
        axis.legend(fontsize=7)
    return _png(figure)


def _figure(columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 if columns == 1 else 11, 4), layout="constrained")
    return figure, figure.subplots(1, columns)


def _png(figure: Any) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=110)
    return held.getvalue()
