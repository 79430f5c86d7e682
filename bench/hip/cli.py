"""`loadback bench hip`: what the native package copies and reads, as shares of what the machine can do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.hip.disk import NoDirectReads, measure_disk
from bench.hip.memory import WrongBytes, measure_memory
from bench.hip.outcome import DiskOutcome, MemoryOutcome, as_json
from kvtier.copy.native import native_module

_PAGES = "16384,65536,262144,2097152"
_UNIT = 4 << 20


def hip(
    pages: Annotated[str, typer.Option(help="Bytes of a page, separated by commas; each divides 4 MiB.")] = _PAGES,
    memory_mb: Annotated[int, typer.Option(min=4, max=16384, help="MiB of each of the two buffers.")] = 512,
    disk_mb: Annotated[int, typer.Option(min=0, max=65536, help="MiB of the file that is read; 0 for none.")] = 1024,
    directory: Annotated[Path, typer.Option(help="Where that file goes: on the disk to be measured.")] = Path("/tmp"),
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; medians count.")] = 9,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads of every way of copying.")] = 2,
    as_json_line: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Measure gathers and scatters of pages beside a flat copy, libc, numpy and torch, and SSD reads beside the device's best.

    Takes a minute. A busy machine makes all of it slower, not the shares: those are taken within rounds.

    [bold]Examples[/bold]

      loadback bench hip --json

      loadback bench hip --directory /mnt/nvme --disk-mb 8192 --threads 4
    """
    native = native_module()
    if native is None:
        _tell("loadback-hip is not installed: run scripts/envs/hip (needs a C++ compiler)")
        raise typer.Exit(1)
    try:
        memory = measure_memory(native, _sizes(pages), memory_mb // 4 * _UNIT, rounds, threads, _tell)
        disk = measure_disk(native, directory, disk_mb // 4 * _UNIT, rounds) if disk_mb >= 4 else None
    except (OSError, WrongBytes, NoDirectReads) as error:
        _tell(str(error))
        raise typer.Exit(1) from error
    Console().print(_table(memory, disk))
    if as_json_line:
        print(json.dumps(as_json(memory, disk)), flush=True)


def _table(memory: MemoryOutcome, disk: DiskOutcome | None) -> Table:
    sizes = list(memory.gather["ours"])
    table = Table(
        "share of a flat copy", *(f"{size >> 10} KiB" for size in sizes), title=f"{memory.threads} threads, {memory.isa}"
    )
    for kind, ways in (("gather", memory.gather), ("scatter", memory.scatter)):
        for name, ratios in ways.items():
            table.add_row(f"{kind}, {name}", *(f"{ratios[size]:.2f}" for size in sizes))
    table.add_row("flat, in four streams", *([f"{memory.striped_ratio:.2f}"] * len(sizes)))
    table.caption = (
        f"flat copy {memory.flat_gb_s:.1f} GB/s; a small batch costs {memory.batch_overhead_us:.1f} us more than its bytes"
    )
    if disk:
        table.caption += (
            f"; SSD, pages of 1 MiB by {disk.way}: {disk.ratio:.2f} of {disk.ceiling_gb_s:.2f} GB/s"
            f" at {disk.cpu_ratio:.2f} of the CPU time of 32 threads"
        )
    return table


def _sizes(words: str) -> list[int]:
    try:
        sizes = [int(word) for word in words.split(",") if word.strip()]
    except ValueError as error:
        raise typer.BadParameter(f"{words!r} is not a list of whole numbers", param_hint="--pages") from error
    if not sizes or min(sizes) < 8 or any(_UNIT % size for size in sizes):
        raise typer.BadParameter("give at least one size of 8 bytes or more that divides 4194304", param_hint="--pages")
    return sizes


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
