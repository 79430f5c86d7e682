"""Files of settings in YAML: read whole, without keys that are given twice. What is wrong with one is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class YamlFault(Exception):
    """One line, without the file's name."""


def read_yaml(path: Path) -> Any:
    """Plain data. Raises `YamlFault`, also for what cannot be read at all."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise YamlFault(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise YamlFault(f"not UTF-8: {error.reason} at byte {error.start}") from error
    return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Plain data. Raises `YamlFault`."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        raise YamlFault(f"not YAML: {_marked(error)}") from error
    except (yaml.YAMLError, ValueError) as error:  # the second: a date or a number that is none
        raise YamlFault(f"not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise YamlFault("not YAML: nested too deep") from error


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is given twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.MarkedYAMLError(problem="a key must be one word", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _marked(error: yaml.MarkedYAMLError) -> str:
    what = " ".join(filter(None, (error.problem, error.context)))
    mark = error.problem_mark or error.context_mark
    return f"{what}, in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else what
