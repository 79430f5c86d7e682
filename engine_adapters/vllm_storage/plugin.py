"""What vLLM imports, packed for its PYTHONPATH, and which flags attach it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine_adapters.plugin_archive import write_archive

MODULE = "engine_adapters.vllm_storage.connector"
CLASS = "LoadbackConnector"
_MODULES = ("settings", "space", "orders", "scheduling", "block_tensors", "working", "connector")


def write_plugin(path: Path) -> Path:
    """A zip archive to be put on the engine's PYTHONPATH."""
    return write_archive(path, "vllm_storage", _MODULES)


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
