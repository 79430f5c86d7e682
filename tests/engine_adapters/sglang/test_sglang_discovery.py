"""`/server_info` of real servers and of others, read into an `EngineInfo`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from costmodel.values import Role
from engine_adapters.base import AdapterError, EventFeed
from engine_adapters.control import decode
from engine_adapters.counts import MAX_COUNT
from engine_adapters.models_list import ServedModel, ServedModels
from engine_adapters.sglang.discovery import engine_info

DATA = Path(__file__).parents[2] / "data" / "engines"
MODELS = decode((DATA / "sglang_v1_models.json").read_bytes(), ServedModels, "models")
URL = "http://10.0.0.7:18310"


def captured(name: str) -> bytes:
    return (DATA / f"{name}_server_info.json").read_bytes()


def test_a_prefill_worker() -> None:
    info = engine_info(captured("sglang_pd_prefill"), MODELS, URL)
    assert (info.engine, info.models, info.role) == ("sglang 0.5.23", ("tiny",), Role.PREFILL)
    assert (info.page_size, info.dp_size, info.bootstrap_port) == (16, 1, 18510)
    assert info.event_feeds == (EventFeed(0, "tcp://10.0.0.7:18410", "tcp://10.0.0.7:18411", "kv-events"),)
    assert (info.kv_tokens_capacity, info.max_running_requests, info.max_prompt_tokens) == (32768, 16, 8186)
    assert info.reports_cached_tokens
    assert not info.bigram


def test_a_decode_worker_without_radix_cache_keeps_nothing() -> None:
    info = engine_info(captured("sglang_pd_decode"), MODELS, URL)
    assert (info.role, info.bootstrap_port, info.decode_keeps_cache) == (Role.DECODE, None, False)


def test_a_unified_worker() -> None:
    info = engine_info(captured("sglang"), MODELS, URL)
    assert (info.role, info.bootstrap_port) == (Role.UNIFIED, None)


def test_flags_hold_the_engines_facts_and_no_secret() -> None:
    raw = json.loads(captured("sglang")) | {"api_key": "sk-1", "admin_api_key": "sk-2", "ssl_keyfile_password": "p"}
    flags = engine_info(json.dumps(raw).encode(), MODELS, URL).flags
    assert (flags["schedule_policy"], flags["kv_events.endpoint_port_base"]) == ("fcfs", 18400)
    assert not [name for name in flags if "key" in name or "password" in name or name == "launch_command"]


def test_every_rank_has_its_feed() -> None:
    kv = {"publisher": "zmq", "endpoint_host": "::", "endpoint_port_base": 5557, "block_size": 64, "dp_size": 3, "topic": ""}
    info = engine_info(json.dumps({"kv_events": kv, "page_size": 32}).encode(), ServedModels(), "http://[fd00::7]:30000")
    assert [feed.address for feed in info.event_feeds] == [f"tcp://[fd00::7]:{5557 + rank}" for rank in range(3)]
    assert [feed.replay_address for feed in info.event_feeds] == [None] * 3
    assert (info.page_size, info.dp_size) == (64, 3)


@pytest.mark.parametrize(("versions", "address"), [({}, "tcp://10.0.0.7:7557"), ({"snapshot_versions": [2]}, None)])
def test_snapshots_are_asked_for_where_they_can_be_read(versions: dict[str, object], address: str | None) -> None:
    kv = {"publisher": "zmq", "endpoint_port_base": 5557, "snapshot_endpoint_port_base": 7557, **versions}
    (feed,) = engine_info(json.dumps({"kv_events": kv}).encode(), ServedModels(), URL).event_feeds
    assert feed.snapshot_address == address


def test_a_host_that_is_told_is_kept() -> None:
    kv = {"publisher": "zmq", "endpoint_host": "10.9.8.7", "endpoint_port_base": 5557, "replay_endpoint_port_base": 6557}
    feed = engine_info(json.dumps({"kv_events": kv}).encode(), ServedModels(), URL).event_feeds[0]
    assert (feed.address, feed.replay_address) == ("tcp://10.9.8.7:5557", "tcp://10.9.8.7:6557")


@pytest.mark.parametrize(
    ("algorithm", "bigram"), [("EAGLE", True), ("eagle3", True), ("NEXTN", True), ("NGRAM", False), (None, False)]
)
def test_eagle_family_hashes_pairs(algorithm: str | None, bigram: bool) -> None:
    raw = json.dumps({"speculative_algorithm": algorithm}).encode()
    assert engine_info(raw, ServedModels(), URL).bigram is bigram


def test_an_old_server_that_tells_little() -> None:
    raw = json.dumps({"served_model_name": "m", "new_field": {"a": [1]}, "kv_events": None, "page_size": None}).encode()
    info = engine_info(raw, ServedModels(), URL)
    assert (info.engine, info.models, info.page_size, info.event_feeds) == ("sglang unknown", ("m",), 0, ())


def test_an_emulator_is_told_by_its_name() -> None:
    raw = json.dumps({"engine": "loadback-emulator", "version": "0.5.23"}).encode()
    assert engine_info(raw, ServedModels(), URL).engine == "loadback-emulator 0.5.23"


@pytest.mark.parametrize("raw", [b"<html>", b"[]", b'{"page_size":"x"}'])
def test_what_is_no_server_info_is_refused_with_its_url(raw: bytes) -> None:
    with pytest.raises(AdapterError, match=URL):
        engine_info(raw, ServedModels(), URL)


@pytest.mark.parametrize(
    ("told", "ranks"), [(None, 1), (0, 1), (-3, 1), (1024, 1024), (1025, 1024), (10**400, 1024), (-(10**400), 1)]
)
def test_ranks_are_bounded(told: int | None, ranks: int) -> None:
    kv = {"publisher": "zmq", "endpoint_port_base": 5557, "dp_size": told or 0}
    for raw in ({"dp_size": told}, {"dp_size": told, "kv_events": kv}):
        info = engine_info(json.dumps(raw).encode(), ServedModels(), URL)
        assert info.dp_size == ranks
        assert len(info.event_feeds) in (0, ranks)


@pytest.mark.parametrize("number", [-1, -(10**400), 10**400])
def test_absurd_numbers_are_bounded(number: int) -> None:
    names = ("page_size", "max_total_num_tokens", "max_running_requests", "max_req_input_len", "disaggregation_bootstrap_port")
    kv = {
        "publisher": "zmq",
        "endpoint_port_base": 65_535,
        "replay_endpoint_port_base": number,
        "block_size": number,
        "dp_size": 2,
    }
    raw = dict.fromkeys(names, number) | {"disaggregation_mode": "prefill", "kv_events": kv, "other": number}
    info = engine_info(json.dumps(raw).encode(), ServedModels((ServedModel("m", max_model_len=number),)), URL)
    told = (info.page_size, info.kv_tokens_capacity, info.max_running_requests, info.max_prompt_tokens)
    assert all(0 <= value <= MAX_COUNT for value in told)
    assert info.bootstrap_port is None
    assert info.event_feeds == (EventFeed(0, "tcp://10.0.0.7:65535", None),)  # rank 1 has no port
    assert msgspec.json.encode(info.flags)
