"""What SGLang imports, packed for its PYTHONPATH, and which flags attach it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine_adapters.plugin_archive import write_archive

MODULE = "engine_adapters.sglang_storage.storage"
CLASS = "LoadbackStorage"
_MODULES = ("settings", "space", "host_pages", "storage")


def write_plugin(path: Path) -> Path:
    """A zip archive to be put on the engine's PYTHONPATH."""
    return write_archive(path, "sglang_storage", _MODULES)


def storage_flags(socket: str, prefetch_policy: str = "wait_complete", **settings: Any) -> tuple[str, ...]:
    """SGLang's flags, beside those of its host tier; `settings` are `StorageSettings` and the engine's own keys."""
    extra = {"backend_name": "loadback", "module_path": MODULE, "class_name": CLASS, "interface_v1": 1, "socket": socket}
    return (
        *("--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-prefetch-policy", prefetch_policy),
        *("--hicache-storage-backend-extra-config", json.dumps(extra | settings)),
    )
