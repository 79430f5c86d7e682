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
    "engine_adapters/vllm_storage/*.py",
)
_EMPTY = ("engine_adapters/__init__.py",)  # the real one imports every adapter
_EPOCH = (1980, 1, 1, 0, 0, 0)

MODULE = "engine_adapters.vllm_storage.connector"
CLASS = "LoadbackConnector"


def write_plugin(path: Path) -> Path:
    """A zip archive to be put on the engine's PYTHONPATH; equal sources make equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name in _EMPTY:
            archive.writestr(ZipInfo(name, _EPOCH), "")
        for source in sorted({source for part in _PARTS for source in _ROOT.glob(part)} - {Path(__file__).resolve()}):
            archive.writestr(ZipInfo(source.relative_to(_ROOT).as_posix(), _EPOCH), source.read_bytes())
    return path


def connector_flags(socket: str, **settings: Any) -> tuple[str, ...]:
    """vLLM's flags; `settings` are `ConnectorSettings`."""
    transfer = {
        "kv_connector": CLASS,
        "kv_connector_module_path": MODULE,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, **settings},
    }
    return ("--kv-transfer-config", json.dumps(transfer))
