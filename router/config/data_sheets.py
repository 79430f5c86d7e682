"""Reads data sheets of machines and models, shipped in `configs` or one's own, for gateways and simulations alike. It computes
nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from costmodel.roofline import Accelerator, ModelShape
from kvtier.settings.faults import faults_in
from kvtier.settings.yaml_file import YamlFault, read_yaml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"  # lies beside the packages where these are installed, too
Sheet = TypeVar("Sheet", Accelerator, ModelShape)


class DataSheetError(Exception):
    """One is missing or wrong. The message names the file and the key, in one line for each fault."""


def load_accelerator(name: str) -> Accelerator:
    """By the name of a file in `configs/hardware`, or by path. Raises `DataSheetError`."""
    return _load(name, "hardware", Accelerator)


def load_model(name: str) -> ModelShape:
    """By the name of a file in `configs/models`, or by path. Raises `DataSheetError`."""
    return _load(name, "models", ModelShape)


def _load(name: str, folder: str, kind: type[Sheet]) -> Sheet:
    path = Path(name) if name.endswith(".yaml") else CONFIGS / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in (CONFIGS / folder).glob("*.yaml")))
        raise DataSheetError(f"no {path}: choose one of {known}, or give the path of a .yaml file")
    try:
        raw = read_yaml(path)
    except YamlFault as error:
        raise DataSheetError(f"{path}: {error}") from error
    if faults := faults_in(raw, kind):
        raise DataSheetError("\n".join(f"{path}: {fault}" for fault in faults))
    return msgspec.convert(raw, kind)
