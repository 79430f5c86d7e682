"""What is wrong with a value, in the words of files and bodies, where pydantic speaks of Python's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LIST = "expected a list"
_MAPPING = "expected a mapping of keys to values"
_KINDS = {
    "tuple_type": _LIST,
    "list_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
}


def fault_words(fault: Mapping[str, Any]) -> str:
    """`fault` is one of pydantic's."""
    return _KINDS.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")
