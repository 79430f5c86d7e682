"""Reads `tests/data/clis` as a gateway would receive it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from router.body.memo import PrefixMemo
from router.body.scan import Scanner
from router.body.scanned import Scanned
from router.dialects import DIALECTS, Dialect
from router.threads.keys import ThreadHints, read_hints
from router.threads.lineage import State
from router.threads.sighting import Sighting
from router.threads.store import ThreadStore

FOLDER = Path(__file__).parents[2] / "data" / "clis"
NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))


class Recorded(NamedTuple):
    dialect: Dialect
    body: bytes
    headers: list[tuple[bytes, bytes]]
    at_ms: float
    fault: str | None

    @property
    def parsed(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


def read(name: str) -> Iterator[Recorded]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            dialect = DIALECTS.get(entry["path"].partition("?")[0])
            if dialect is not None:
                headers = [(key.lower().encode(), value.encode()) for key, value in entry["headers"]]
                yield Recorded(dialect, entry["body"].encode(), headers, entry["t"] * 1000, entry["fault"])


class Desk:
    """A scanner, its memo and a store, wired as the gateway wires them."""

    def __init__(self, *, resume_gap_s: float = 60.0, max_bytes: int = 64 * 1024 * 1024, memo: bool = True) -> None:
        self.memo: PrefixMemo[State] = PrefixMemo(seed=7)
        self.scanner: Scanner[State] = Scanner(("rid",), self.memo if memo else None)
        self.store = ThreadStore(self.scanner, max_bytes=max_bytes, resume_gap_s=resume_gap_s)

    def scan(self, body: bytes, dialect: Dialect) -> Scanned[State]:
        return self.scanner.scan(body, dialect)

    def see(self, body: bytes, dialect: Dialect, now_ms: float = 0.0, hints: ThreadHints | None = None) -> Sighting:
        return self.store.observe(self.scan(body, dialect), hints or ThreadHints(), now_ms)

    def see_recorded(self, entry: Recorded) -> Sighting:
        scanned = self.scan(entry.body, entry.dialect)
        return self.store.observe(scanned, read_hints(entry.headers, scanned), entry.at_ms)
