"""Reads `configs/hardware/*.yaml` and `configs/models/*.yaml`. It computes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from costmodel.roofline import Accelerator, ModelShape

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
T = TypeVar("T")


class MachineError(Exception):
    """A description is missing or wrong; the message names the file and the key."""


def load_accelerator(name: str) -> Accelerator:
    """By the name of a file in `configs/hardware`, or by path."""
    return _load(name, "hardware", Accelerator)


def load_model(name: str) -> ModelShape:
    """By the name of a file in `configs/models`, or by path."""
    return _load(name, "models", ModelShape)


def _load(name: str, folder: str, kind: type[T]) -> T:
    path = Path(name) if name.endswith(".yaml") else CONFIGS / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (CONFIGS / folder).glob("*.yaml")))
        raise MachineError(f"no {path}: choose one of {known}, or give the path of a .yaml file")
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), kind)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise MachineError(f"{path}: {error}") from error
