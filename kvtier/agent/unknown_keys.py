"""Every key of a file that its settings do not have, each with its path and the known key that is most like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

_LIKENESS = 0.7  # of 1: prt is like port, agents is not like stages


def unknown_keys(raw: Any, settings: type) -> list[str]:
    """One line a key. `raw` is plain data; what is wrong with it otherwise is not said here."""
    return list(_unknown(raw, inspect.type_info(settings), ""))


def _unknown(raw: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            if not isinstance(each, inspect.StructType) or _meant(raw, each):
                yield from _unknown(raw, each, path)
    elif isinstance(kind, inspect.VarTupleType) and isinstance(raw, list):
        for number, item in enumerate(raw):
            yield from _unknown(item, kind.item_type, f"{path}[{number}]")
    elif isinstance(kind, inspect.StructType) and isinstance(raw, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        known = [*fields, *([kind.tag_field] if kind.tag_field else [])]
        for key, value in raw.items():
            where = f"{path}.{key}" if path else str(key)
            if key in fields:
                yield from _unknown(value, fields[key], where)
            elif key not in known:
                yield f"{where}: {unknown_key(str(key), known)}"


def _meant(raw: Any, kind: inspect.StructType) -> bool:
    return kind.tag_field is None or (isinstance(raw, dict) and raw.get(kind.tag_field) == kind.tag)


def unknown_key(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=_LIKENESS)
    return f"unknown key; did you mean {near[0]}?" if near else "unknown key"
