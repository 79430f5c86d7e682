"""Reads configuration files and the environment: the only module that does, but for the data sheets that a file names.

A YAML string `${NAME}` is replaced by that environment variable, so that keys stay out of files; `$$` is a dollar sign.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kvtier.settings.unknown_key import unknown_key
from kvtier.settings.yaml_file import YamlFault, parse_yaml, read_yaml
from router.config.beliefs import BeliefError, believed
from router.config.fault_words import fault_words
from router.config.tree import Config, PolicyConfig, PoolConfig

Model = TypeVar("Model", Config, PolicyConfig)
_VARIABLE = re.compile(r"\$(?:\$|\{([A-Z_][A-Z0-9_]*)\}|(\{\w*))")


class ConfigError(Exception):
    """The configuration cannot be used. The message lists every fault as `file: key.path: what is wrong`."""


def load_config(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    try:
        tree = read_yaml(path)
    except YamlFault as error:
        raise ConfigError(f"{path}: {error}") from error
    return _parse(tree, str(path), os.environ if environ is None else environ)


def parse_config(text: str, source: str, environ: Mapping[str, str]) -> Config:
    try:
        tree = parse_yaml(text)
    except YamlFault as error:
        raise ConfigError(f"{source}: {error}") from error
    return _parse(tree, source, environ)


def parse_policy(tree: object, source: str) -> PolicyConfig:
    return _validate(PolicyConfig, tree, source)


def _parse(tree: object, source: str, environ: Mapping[str, str]) -> Config:
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected a mapping at the top, such as `pools:`")
    return _with_beliefs(_validate(Config, _expanded(tree, source, environ), source), source)


def _expanded(tree: Any, source: str, environ: Mapping[str, str]) -> Any:
    missing: list[str] = []
    expanded = _expand(tree, (), environ, missing)
    if missing:
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in missing))
    return expanded


def _expand(node: Any, at: tuple[int | str, ...], environ: Mapping[str, str], missing: list[str]) -> Any:
    """With every variable in place; those that are not there, or none, go to `missing`, with the key that wants them."""
    if isinstance(node, dict):
        return {key: _expand(value, (*at, key), environ, missing) for key, value in node.items()}
    if isinstance(node, list):
        return [_expand(value, (*at, index), environ, missing) for index, value in enumerate(node)]
    if not isinstance(node, str):
        return node

    def value_of(match: re.Match[str]) -> str:
        name, broken = match.groups()
        if broken is not None:
            missing.append(f"{_path(at)}: ${broken} is no variable: write ${{NAME}} in capitals, or $$ for a dollar sign")
            return ""
        if name is None:
            return "$"
        if not environ.get(name):
            fault = "empty" if name in environ else "not set"
            missing.append(f"{_path(at)}: ${{{name}}} is {fault} in the environment")
        return environ.get(name, "")

    return _VARIABLE.sub(value_of, node)


def _validate(model: type[Model], tree: object, source: str) -> Model:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [f"{source}: {_path(fault['loc'])}: {_message(fault, model)}" for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from error


def _with_beliefs(config: Config, source: str) -> Config:
    """What the pools' machines say, in the place of keys that are not given."""
    faults: list[str] = []
    pools = tuple(
        _with_belief(pool, f"{source}: pools.{number}.hardware.machine", faults) for number, pool in enumerate(config.pools)
    )
    if faults:
        raise ConfigError("\n".join(faults))
    return config.model_copy(update={"pools": pools})


def _with_belief(pool: PoolConfig, where: str, faults: list[str]) -> PoolConfig:
    if pool.hardware.machine is None:
        return pool
    try:
        return pool.model_copy(update={"hardware": believed(pool.hardware)})
    except BeliefError as error:
        faults += [f"{where}.{error.key}: {line}" for line in str(error).splitlines()]
        return pool


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "(top level)"


def _message(fault: Any, model: type[BaseModel]) -> str:
    if fault["type"] == "extra_forbidden":
        *section, key = fault["loc"]
        return unknown_key(str(key), _known_keys(model, section))
    return fault_words(fault)


def _known_keys(model: type[BaseModel], section: Sequence[int | str]) -> list[str]:
    """Of a section. What is no key of a model on the way there numbers an item, or names one."""
    models = [model]
    for part in section:
        within = [each.model_fields[part].annotation for each in models if isinstance(part, str) and part in each.model_fields]
        if within:
            models = [found for kind in within for found in _models_in(kind)]
    return [key for each in models for key in each.model_fields]


def _models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [found for part in get_args(kind) for found in _models_in(part)]
