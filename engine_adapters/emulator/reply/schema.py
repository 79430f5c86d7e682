"""Tool arguments made up from a JSON schema: the least that satisfies it, with values an agent's tool can really run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SHELL_COMMAND = "ls -la"
_STRINGS = {
    "command": _SHELL_COMMAND,
    "cmd": _SHELL_COMMAND,
    "script": _SHELL_COMMAND,
    "pattern": "*",
    "query": "README",
    "description": "List the files here",
    "url": "http://127.0.0.1/",
}
_PATH_WORDS = ("path", "file", "dir", "folder")
_MAX_DEPTH = 8
_MAX_CHARS = 4_096


def synthesise(schema: Any, name: str = "") -> Any:
    """A value for `schema`; `name` is the property it is for. Required properties only. Unknown schemas give a string."""
    return _value(schema, name.lower(), 0)


def _value(schema: Any, name: str, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return _string({}, name)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    for union in ("anyOf", "oneOf", "allOf"):
        options = schema.get(union)
        if isinstance(options, list) and options:
            return _value(_first_useful(options), name, depth + 1)
    return _typed(schema, name, depth)


def _typed(schema: Mapping[str, Any], name: str, depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        properties, required = schema.get("properties"), schema.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        names = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
        return {key: _value(known.get(key), key.lower(), depth + 1) for key in names}
    if kind == "array":
        return _array(schema, name, depth)
    if kind in ("integer", "number"):
        least, most = _number(schema, "minimum"), _number(schema, "maximum")
        return max(least, 1) if "maximum" not in schema else min(most, least)
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    return _string(schema, name)


def _array(schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
    items = schema.get("items")
    if name in ("command", "cmd") and (not isinstance(items, Mapping) or items.get("type", "string") == "string"):
        return ["bash", "-lc", _SHELL_COMMAND]
    return [_value(items, name.rstrip("s"), depth + 1)]


def _string(schema: Mapping[str, Any], name: str) -> str:
    if name in _STRINGS:
        return _STRINGS[name]
    if any(word in name for word in _PATH_WORDS):
        return "README.md" if "dir" not in name and "folder" not in name else "."
    return "x" * int(min(max(_number(schema, "minLength"), 1), _MAX_CHARS))


def _number(schema: Mapping[str, Any], key: str) -> Any:
    """1 where there is none."""
    value = schema.get(key)
    return value if isinstance(value, int | float) else 1


def _first_useful(options: list[Any]) -> Any:
    return next((one for one in options if not (isinstance(one, Mapping) and one.get("type") == "null")), options[0])
