"""Where the real engines' own Python environments lie: beside the project's, made by `scripts/envs/NAME`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPU_SHIM = Path(__file__).resolve().parent / "cpu_shim"


class EngineNotInstalled(Exception):
    """The engine's environment is not there. The message names the script that makes it."""


def engine_bin(name: str, root: Path = ROOT) -> Path:
    """The `bin` folder of `.venv-NAME`. Raises `EngineNotInstalled`."""
    folder = root / f".venv-{name}" / "bin"
    if not (folder / "python").exists():
        raise EngineNotInstalled(f"{folder.parent} does not exist; make it with scripts/envs/{name}")
    return folder
