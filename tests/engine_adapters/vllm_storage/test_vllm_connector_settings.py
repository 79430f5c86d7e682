"""What vLLM must be set to, what identity its blocks have, and what is packed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from engine_adapters.vllm_storage.plugin import CLASS, MODULE, connector_flags, write_plugin
from engine_adapters.vllm_storage.settings import ConnectorConfigError, ConnectorSettings, check_engine, connector_settings
from engine_adapters.vllm_storage.space import Rank, page_space
from kvtier.page.space import REPLICATED, Shard

SETTINGS = ConnectorSettings(socket="/run/agent.sock")
ALONE = Rank()


def engine(**changes: Any) -> Any:
    found = {
        "kv_load_failure_policy": "recompute",
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "cache_dtype": "auto",
        "model": "/models/m",
        "revision": None,
    } | changes
    part = SimpleNamespace(**found)
    return SimpleNamespace(cache_config=part, parallel_config=part, kv_transfer_config=part, model_config=part)


def caches(groups: int = 1, replicas: int = 1) -> Any:
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=32))
    return SimpleNamespace(kv_cache_groups=[group] * groups, kv_tp_replicas=replicas, num_blocks=8)


def test_a_right_engine_passes() -> None:
    check_engine(engine(), caches())
    check_engine(engine(prefix_caching_hash_algo="sha256_cbor"), caches())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy"),
        ({"enable_prefix_caching": False}, "--enable-prefix-caching"),
        ({"prefix_caching_hash_algo": "xxhash"}, "--prefix-caching-hash-algo"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size"),
    ],
)
def test_a_wrong_engine_is_told_what_to_set(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConnectorConfigError, match=named):
        check_engine(engine(**change), caches())


def test_several_cache_groups_are_refused() -> None:
    with pytest.raises(ConnectorConfigError, match="2 KV cache groups"):
        check_engine(engine(), caches(groups=2))


def test_settings_that_nobody_reads_are_refused() -> None:
    assert connector_settings({"socket": "/s", "load_s": 3}).load_s == 3
    with pytest.raises(ConnectorConfigError, match="sockets"):
        connector_settings({"socket": "/s", "sockets": "/t"})
    with pytest.raises(ConnectorConfigError, match="socket"):
        connector_settings({})


def test_identity_holds_what_decides_a_blocks_bytes() -> None:
    def space(rank: Rank = ALONE, replicas: int = 1, settings: ConnectorSettings = SETTINGS, **changes: Any) -> Any:
        return page_space(engine(**changes), caches(replicas=replicas), rank, "layout", settings)

    plain = space()
    assert (plain.model, plain.kv_dtype, plain.page_tokens, plain.revision) == ("/models/m", "auto", 32, "")
    others = [
        space(cache_dtype="fp8"),
        space(revision="abc"),
        space(Rank(1, 2)),
        space(Rank(0, 2)),
        space(Rank(0, 1, 1, 2)),
        space(settings=ConnectorSettings(socket="/s", namespace="team")),
        space(settings=ConnectorSettings(socket="/s", model="m")),
    ]
    assert len({plain, *others}) == len(others) + 1
    assert space(Rank(3, 4), replicas=4).shard == Shard(REPLICATED)
    assert space(Rank(3, 4), replicas=2).shard == Shard(1, 2)


def test_flags_are_what_vllm_reads() -> None:
    flag, value = connector_flags("/s.sock", worker="w", load_s=2)
    transfer = json.loads(value)
    assert flag == "--kv-transfer-config"
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == (CLASS, MODULE)
    check_engine(engine(kv_load_failure_policy=transfer["kv_load_failure_policy"]), caches())
    assert connector_settings(transfer["kv_connector_extra_config"]) == ConnectorSettings(
        socket="/s.sock", worker="w", load_s=2
    )


def test_the_archive_holds_what_the_connector_imports_and_no_more(tmp_path: Path) -> None:
    """All but torch and vLLM themselves, which are not here: the modules beside them are imported from the archive alone."""
    archive = write_plugin(tmp_path / "plugin.zip")
    assert archive.read_bytes() == write_plugin(tmp_path / "again.zip").read_bytes()
    names = ZipFile(archive).namelist()
    assert f"{MODULE.replace('.', '/')}.py" in names
    assert not [name for name in names if "router" in name or "plugin" in name or "sglang" in name]
    modules = ("scheduling", "space", "orders", "settings")
    imports = "; ".join(f"import engine_adapters.vllm_storage.{module}" for module in modules)
    foreign = "[m for m in sys.modules if m in ('fastapi', 'grpc', 'httpx', 'pydantic', 'uvloop', 'yaml')]"
    client = "import kvtier.client.page_client as client"
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); {imports}; {client}; print({foreign}, client.__file__)"
    said = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("[] ")
    assert "plugin.zip" in said
