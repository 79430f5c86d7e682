"""SGLang 0.5.23 rewrites type names in tool parameters that are not JSON Schema's ("varchar", "int32"), and renders the result.

Wire: srt/function_call/utils.py (`normalize_json_schema_types`).
"""

from __future__ import annotations

from typing import Any

_STANDARD = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ALIASES = {
    **dict.fromkeys(
        ("str", "text", "varchar", "char", "enum", "uuid", "date", "datetime", "time", "timestamp", "binary", "blob", "bytea",
         "bytes", "varbinary"),
        "string",
    ),
    "bool": "boolean",
    **dict.fromkeys(("bigint", "smallint", "tinyint"), "integer"),
    **dict.fromkeys(("double", "decimal", "real", "numeric"), "number"),
    **dict.fromkeys(("arr", "tuple", "set"), "array"),
    "map": "object",
}  # fmt: skip
_PREFIXES = {
    **dict.fromkeys(("int", "uint", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("num", "float"), "number"),
    "list": "array",
    "dict": "object",
}
_AFTER_PREFIX = frozenset("0123456789[<( \t")
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_INNER_SCHEMAS = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip


def normalized_types(schema: Any) -> Any:
    """A copy of the schema with standard type names. Unknown ones stay."""
    if isinstance(schema, list):
        return [normalized_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if "type" in found:
        found["type"] = _types(found["type"])
    for key in _SCHEMAS_BY_NAME:
        if isinstance(found.get(key), dict):
            found[key] = {name: normalized_types(inner) for name, inner in found[key].items()}
    for key in _LISTED_SCHEMAS:
        if isinstance(found.get(key), list):
            found[key] = [normalized_types(inner) for inner in found[key]]
    for key in _INNER_SCHEMAS:
        if key in found:
            found[key] = normalized_types(found[key])
    return found


def _types(value: Any) -> Any:
    if not isinstance(value, list):
        return _type(value)
    found: list[Any] = []
    for item in map(_type, value):
        if item not in found:
            found.append(item)
    return found


def _type(value: Any) -> Any:
    if not isinstance(value, str) or value in _STANDARD:
        return value
    base = value.split("(", 1)[0].strip().lower()
    if base in _STANDARD:
        return base
    if base in _ALIASES:
        return _ALIASES[base]
    for prefix, target in _PREFIXES.items():
        if base.startswith(prefix) and (len(base) == len(prefix) or base[len(prefix)] in _AFTER_PREFIX):
            return target
    return value
