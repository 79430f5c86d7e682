"""What an operator says in `--hicache-storage-backend-extra-config`. Keys that nobody reads are refused with their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvtier.client.page_client import ClientSettings
from kvtier.settings.ranges import CountOrNone, Text, Threads

# SGLang's own words in the same object: they choose the class, or are left there by the engine.
_ENGINE_KEYS = {"backend_name", "module_path", "class_name", "interface_v1", "file_storage_path", "tp_lcm_size"}


class StorageConfigError(ValueError):
    """The message names the key and what to do."""


class StorageSettings(ClientSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`socket` is the agent's. `worker` is this server's name at the gateway, for restore cuts."""

    socket: Text
    worker: str = ""
    model: str = ""  # "" = what SGLang calls it; servers that name one model by different paths must agree here
    revision: str = ""
    namespace: str = ""  # pages of different namespaces never meet
    ssd_pages: CountOrNone = 128  # of a batch that count as there while they lie on SSD alone; SGLang asks for 128 at a time
    copy_threads: Threads = 2


def storage_settings(extra_config: Mapping[str, Any] | None) -> StorageSettings:
    """Raises `StorageConfigError`."""
    given = dict(extra_config or {})
    if not given.get("interface_v1"):
        raise StorageConfigError(
            'set "interface_v1": 1 in --hicache-storage-backend-extra-config: without it SGLang copies every page on its way'
        )
    try:
        return msgspec.convert({key: value for key, value in given.items() if key not in _ENGINE_KEYS}, StorageSettings)
    except msgspec.ValidationError as error:
        raise StorageConfigError(f"--hicache-storage-backend-extra-config: {error}") from error
