"""The archive for the engine's PYTHONPATH: it stands alone, and the flags name what is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from engine_adapters.sglang_storage.plugin import CLASS, MODULE, storage_flags, write_plugin

PROBE = """
import sys, types
for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["sglang.srt.mem_cache.hicache_storage"].HiCacheStorage = object
before = set(sys.modules)
import importlib
cls = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
ours = {"kvtier", "engine_adapters"}
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print(",".join(sorted(loaded - ours - {"typing_extensions"} - set(sys.stdlib_module_names))))  # msgspec takes it if there
print(all(".zip" in sys.modules[name].__file__ for name in sys.modules if name.split(".")[0] in ours))
"""


def test_the_archive_needs_msgspec_and_xxhash_alone(tmp_path: Path) -> None:
    archive = write_plugin(tmp_path / "plugin.zip")
    run = subprocess.run(
        [sys.executable, "-c", PROBE, MODULE, CLASS], cwd=tmp_path, check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(archive)},
    )  # fmt: skip
    assert run.stdout.split() == ["msgspec,xxhash", "True"]


def test_equal_sources_make_equal_archives(tmp_path: Path) -> None:
    assert write_plugin(tmp_path / "a.zip").read_bytes() == write_plugin(tmp_path / "b.zip").read_bytes()


def test_flags_name_the_class_and_the_socket() -> None:
    flags = storage_flags("/run/a.sock", worker="p0")
    assert flags[:2] == ("--hicache-storage-backend", "dynamic")
    extra = json.loads(flags[flags.index("--hicache-storage-backend-extra-config") + 1])
    assert extra["interface_v1"] == 1
    assert (extra["module_path"], extra["class_name"]) == (MODULE, CLASS)
    assert (extra["socket"], extra["worker"]) == ("/run/a.sock", "p0")
