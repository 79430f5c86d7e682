"""What real engines are started with: the flags of the engine contract, and ports that never collide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.values import Role
from engine_adapters.launch import sglang, vllm
from engine_adapters.launch.environments import CPU_SHIM, EngineNotInstalled, engine_bin
from engine_adapters.launch.pool import pool_specs
from engine_adapters.launch.sglang import SglangSpec

MODEL = Path("/models/tiny")
TEMPLATE = SglangSpec(model_dir=MODEL, port=0, kv_port=0, replay_port=0)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_pair_of_roles() -> None:
    prefill, decode = pool_specs(TEMPLATE, [Role.PREFILL, Role.DECODE], range(19200, 19210))
    prefill_words = sglang.command(prefill, Path("python"))
    decode_words = sglang.command(decode, Path("python"))
    assert option(prefill_words, "--disaggregation-bootstrap-port") == "19203"
    assert "--enable-hierarchical-cache" in prefill_words
    assert "--disaggregation-decode-enable-radix-cache" in decode_words
    assert "--disaggregation-decode-enable-radix-cache" not in prefill_words
    assert {option(words, "--disaggregation-mode") for words in (prefill_words, decode_words)} == {"prefill", "decode"}


def test_a_unified_server_has_no_disaggregation() -> None:
    (spec,) = pool_specs(TEMPLATE, [Role.UNIFIED], range(19200, 19205))
    assert not [word for word in sglang.command(spec, Path("python")) if word.startswith("--disaggregation")]


def test_events_are_published_with_their_replay() -> None:
    (spec,) = pool_specs(TEMPLATE, [Role.UNIFIED], range(19200, 19205))
    config = json.loads(option(sglang.command(spec, Path("python")), "--kv-events-config"))
    assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://*:19201", "tcp://*:19202")


def test_no_two_servers_share_a_port() -> None:
    specs = pool_specs(TEMPLATE, [Role.PREFILL, Role.PREFILL, Role.DECODE], range(19200, 19215))
    of_one = ("port", "kv_port", "replay_port", "bootstrap_port", "rendezvous_port")
    assert len({getattr(spec, name) for spec in specs for name in of_one}) == 15


def test_too_few_ports_are_refused() -> None:
    with pytest.raises(ValueError, match="2 servers need 10 ports, 9 were given"):
        pool_specs(TEMPLATE, [Role.PREFILL, Role.DECODE], range(19200, 19209))


def test_the_shim_is_on_the_engines_path_and_there() -> None:
    assert sglang.variables()["PYTHONPATH"] == str(CPU_SHIM)
    assert (CPU_SHIM / "sitecustomize.py").exists()
    assert (CPU_SHIM / "sgl_kernel" / "__init__.py").exists()


def test_vllm_tells_nobody_where_its_events_are_but_its_spec_does() -> None:
    spec = vllm.VllmSpec(model_dir=MODEL, port=19200, kv_port=19201, replay_port=19202)
    words = vllm.command(spec, Path("/bin"))
    assert words[:3] == ["/bin/vllm", "serve", str(MODEL)]
    assert json.loads(option(words, "--kv-events-config"))["endpoint"] == "tcp://*:19201"
    assert (spec.event_feed.address, spec.event_feed.replay_address) == ("tcp://127.0.0.1:19201", "tcp://127.0.0.1:19202")


def test_a_missing_environment_names_the_script_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(EngineNotInstalled, match="scripts/envs/sglang"):
        engine_bin("sglang", tmp_path)
