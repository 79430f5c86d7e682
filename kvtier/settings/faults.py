"""Every fault of a file, with its path: keys that its settings do not have, and values that they cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

import msgspec

from kvtier.settings.unknown_key import unknown_key

_UNKNOWN = "Object contains unknown field"  # told of each by itself


def faults_in(raw: Any, settings: type) -> list[str]:
    """One line each; what is missing is told where no key is unknown. `raw` is plain data, sizes in bytes."""
    return list(_wrong(raw, settings, ""))


def _wrong(raw: Any, ranged: Any, path: str) -> Iterator[str]:
    kind = get_args(ranged)[0] if get_origin(ranged) is Annotated else ranged
    tagged = [each for each in get_args(kind) if _is_struct(each) and each.__struct_config__.tag_field]
    structs = [each for each in (kind, *get_args(kind)) if _is_struct(each)]
    if isinstance(raw, dict) and tagged:
        yield from _one_of(raw, tagged, path)
    elif isinstance(raw, dict) and structs:
        yield from _members(raw, structs[0], path)
    elif isinstance(raw, list) and get_origin(kind) is tuple:
        for number, item in enumerate(raw):
            yield from _wrong(item, get_args(kind)[0], f"{path}[{number}]")
    elif isinstance(raw, str) and isinstance(kind, type) and issubclass(kind, StrEnum):
        if raw not in set(kind):
            yield f"{path}: {raw!r} is none of {', '.join(kind)}"
    elif isinstance(raw, str) and kind is int and path.endswith("bytes"):
        yield f"{path}: {raw!r} is no size; write bytes or e.g. 8 GiB"
    else:
        yield from _converted(raw, ranged, path)


def _one_of(raw: dict[str, Any], kinds: Sequence[Any], path: str) -> Iterator[str]:
    by_tag = {each.__struct_config__.tag: each for each in kinds}
    key = kinds[0].__struct_config__.tag_field
    tag = raw.get(key)
    if isinstance(tag, str) and tag in by_tag:
        yield from _members(raw, by_tag[tag], path)
    else:
        what = f"{tag!r} is none of" if key in raw else "required: one of"
        yield f"{path}.{key}: {what} {', '.join(by_tag)}"


def _members(raw: dict[str, Any], kind: Any, path: str) -> Iterator[str]:
    """What members say for themselves; what they say together only where each alone is good."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    known = [*fields, *([config.tag_field] if config.tag_field else [])]
    unknown = [key for key in raw if key not in known]
    faults = [f"{path}.{key}: {unknown_key(str(key), known)}".lstrip(".") for key in unknown]
    for key in (key for key in raw if key in fields):
        faults += _wrong(raw[key], fields[key].type, f"{path}.{key}".lstrip("."))
    missing = [key for key, field in fields.items() if field.required and key not in raw]
    if not unknown:
        faults += [f"{path}.{key}: required".lstrip(".") for key in missing]
    yield from faults
    if not faults and not missing:
        yield from _converted(raw, kind, path)


def _converted(raw: Any, kind: Any, path: str) -> Iterator[str]:
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        what = str(error).partition(" - at `")[0]
        if not what.startswith(_UNKNOWN):
            yield f"{path}: {what}" if path else what


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
