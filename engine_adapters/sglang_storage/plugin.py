"""Packs what the engine imports into one archive for its PYTHONPATH, and says which flags attach it.

The archive holds the engine's side alone, so that nothing else of this project can hide a module of the engine's environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_ROOT = Path(__file__).resolve().parents[2]
_PARTS = (
    "kvtier/__init__.py",
    "kvtier/page/*.py",
    "kvtier/wire/__init__.py",
    "kvtier/wire/frames.py",
    "kvtier/wire/messages.py",
    "kvtier/client/*.py",
    "kvtier/copy/*.py",
    "engine_adapters/sglang_storage/__init__.py",
    "engine_adapters/sglang_storage/settings.py",
    "engine_adapters/sglang_storage/space.py",
    "engine_adapters/sglang_storage/host_pages.py",
    "engine_adapters/sglang_storage/storage.py",
)
_EMPTY = ("engine_adapters/__init__.py",)  # the real one imports every adapter
_EPOCH = (1980, 1, 1, 0, 0, 0)

MODULE = "engine_adapters.sglang_storage.storage"
CLASS = "LoadbackStorage"


def write_plugin(path: Path) -> Path:
    """A zip archive to be put on the engine's PYTHONPATH; equal sources make equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name in _EMPTY:
            archive.writestr(ZipInfo(name, _EPOCH), "")
        for source in sorted({source for part in _PARTS for source in _ROOT.glob(part)}):
            archive.writestr(ZipInfo(source.relative_to(_ROOT).as_posix(), _EPOCH), source.read_bytes())
    return path


def storage_flags(socket: str, prefetch_policy: str = "wait_complete", **settings: Any) -> tuple[str, ...]:
    """SGLang's flags, beside those of its host tier; `settings` are `StorageSettings` and the engine's own keys."""
    extra = {"backend_name": "loadback", "module_path": MODULE, "class_name": CLASS, "interface_v1": 1, "socket": socket}
    return (
        *("--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-prefetch-policy", prefetch_policy),
        *("--hicache-storage-backend-extra-config", json.dumps(extra | settings)),
    )
