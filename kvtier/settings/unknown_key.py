"""What is said of a key that a file should not have: the known key that is most like it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LIKENESS = 0.7  # of 1: prt is like port, agents is not like stages


def unknown_key(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=_LIKENESS)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"
