"""A run's turns as a Parquet file, one row a turn. Needs pyarrow, of the extra `loadback[sim]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.simulate.served import Served


class ExtraMissing(Exception):
    """A library of the extra is not installed; the message says how to get it."""


def write_turns(path: Path, turns: Sequence[Served]) -> None:
    """Columns are `Served`'s fields; workers are told by their ids."""
    arrow, parquet = _arrow()
    columns: dict[str, list[Any]] = {field.name: [] for field in msgspec.structs.fields(Served)}
    for turn in turns:
        for name, values in columns.items():
            value = getattr(turn, name)
            values.append(value.worker_id if name in ("prefill", "decode") else value)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path)


def read_turns(path: Path) -> dict[str, list[Any]]:
    """Columns by name."""
    _, parquet = _arrow()
    table = parquet.read_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def require_extra() -> None:
    """Raises `ExtraMissing` before anything was computed in vain."""
    _arrow()
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ExtraMissing("plots need matplotlib: pip install 'loadback[sim]'") from error


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExtraMissing("Parquet needs pyarrow: pip install 'loadback[sim]'") from error
    return pyarrow, pyarrow.parquet
