"""Packs what an engine imports of this project into one archive for its PYTHONPATH.

The archive holds the engine's side alone, so that nothing else of this project can hide a module of the engine's environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_ROOT = Path(__file__).resolve().parents[1]
_CLIENT = (
    "kvtier/__init__.py",
    "kvtier/page/*.py",
    "kvtier/settings/__init__.py",
    "kvtier/settings/ranges.py",
    "kvtier/wire/__init__.py",
    "kvtier/wire/frames.py",
    "kvtier/wire/leased_pages.py",
    "kvtier/wire/messages.py",
    "kvtier/client/*.py",
    "kvtier/copy/*.py",
)
_EMPTY = ("engine_adapters/__init__.py",)  # the real one imports every adapter
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_archive(path: Path, package: str, modules: Iterable[str]) -> Path:
    """A zip of the agent's client and of `modules` of `engine_adapters.package`; equal sources make equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = [f"engine_adapters/{package}/{module}.py" for module in ("__init__", *modules)]
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name in _EMPTY:
            archive.writestr(ZipInfo(name, _EPOCH), "")
        for source in sorted({source for part in (*_CLIENT, *own) for source in _ROOT.glob(part)}):
            archive.writestr(ZipInfo(source.relative_to(_ROOT).as_posix(), _EPOCH), source.read_bytes())
    return path
