"""The agent's YAML: refused where it is wrong, with the key; and nothing in it is ignored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from math import inf, nan
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from agent_rig import ROOT, config_of

from kvtier.agent.config import AgentConfig, ConfigError, load_config, parse_config
from kvtier.policies.admission import AdmitReused
from kvtier.policies.eviction import ReusePerByte
from kvtier.store.settings import DemoteWhen

FULL = """
node: node-a
socket: /run/loadback/agent.sock
listen: {host: 10.0.0.1, port: 20200}
dram:
  bytes: 64 GiB
  backing: hugetlb
  eviction: {policy: reuse_per_byte, ms_per_token: 0.05}
ssd:
  directory: /var/lib/loadback
  bytes: 2 TB
  demote: eviction
  admission: {policy: reused, min_hits: 2}
"""


def test_a_whole_page_is_understood(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(FULL)
    config = load_config(tmp_path / "agent.yaml")
    assert config.dram.bytes == 64 << 30
    assert config.dram.eviction == ReusePerByte(ms_per_token=0.05)
    assert config.ssd is not None
    assert (config.ssd.bytes, config.ssd.demote, config.ssd.admission) == (
        2 * 10**12,
        DemoteWhen.EVICTION,
        AdmitReused(min_hits=2),
    )
    assert config.ssd.segment_bytes == 256 << 20


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("dram", "huge"), True, r"^dram\.huge: unknown key$"),
        (("dram", "bytes"), "lots", "dram.bytes: 'lots' is no size"),
        (("dram", "bytes"), "1 MiB", "one huge page"),
        (
            ("dram", "eviction"),
            {"policy": "random"},
            r"^dram\.eviction\.policy: 'random' is none of lru, lfu_decay, reuse_per_byte, semantic$",
        ),
        (("dram", "eviction"), {}, r"^dram\.eviction\.policy: required: one of lru, "),
        (("dram", "backing"), "huge", r"^dram\.backing: 'huge' is none of auto, hugetlb, thp, plain$"),
        (("tick_ms",), "soon", r"^tick_ms: Expected `float`, got `str`$"),
        (("agents",), [], r"^agents: unknown key$"),
        (("dram", "low_watermark"), 2.0, "watermark"),
        (("ssd", "segment_bytes"), "512 KiB", r"at least twice dram\.slab_bytes, 1048576 bytes, not 524288: "),
        (("ssd", "bytes"), "11 MiB", r"^ssd: bytes must hold at least 3 segments .*: 12582912 bytes, not 11534336$"),
        (("serve", "max_conections"), 5, r"^serve\.max_conections: unknown key; did you mean max_connections\?$"),
        (("node",), "", r"^node: Expected `str` of length >= 1$"),
        (("dram", "slab_bytes"), 5000, r"^dram\.slab_bytes: .*multiple of 4096"),
        (("listen", "port"), 70_000, r"^listen\.port: Expected `int` <= 65535$"),
        (("peers",), [{"node": "b", "host": "b", "port": port} for port in (1, 2)], "two peers have the same node"),
        (("ssd", "io_threads"), 0, r"^ssd\.io_threads: Expected `int` >= 1$"),
        (("tick_ms",), nan, r"^tick_ms: Expected `float` >= 1\.0$"),
        (("nodes",), "a", r"^nodes: unknown key; did you mean node\?$"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, where: tuple[str, ...], value: Any, message: str) -> None:
    config = config_of(tmp_path, ssd={})
    part = config
    for key in where[:-1]:
        part = part.setdefault(key, {})
    part[where[-1]] = value
    with pytest.raises(ConfigError, match=message):
        parse_config(config)


def test_memory_is_whole_huge_pages_and_holds_a_slab(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config["dram"] |= {"bytes": "17 MiB", "slab_bytes": "17 MiB"}
    with pytest.raises(ConfigError, match="whole huge pages"):
        parse_config(config)


def test_every_number_has_a_lowest_and_a_highest(tmp_path: Path) -> None:
    """A negative wait, no thread, or memory beyond any machine would come out as something else, and later."""
    chosen = {
        "dram": config_of(tmp_path)["dram"] | {"eviction": {"policy": "reuse_per_byte"}},
        "share": {"placement": {"policy": "most_free"}, "replication": {"policy": "hot"}},
        "peers": [{"node": "b", "host": "b", "port": 1}],
        "listen": {"host": "127.0.0.1", "port": 5},
        "transport": {"engine": "nixl"},
    }
    config = msgspec.to_builtins(parse_config(config_of(tmp_path, ssd={"admission": {"policy": "reused"}}, **chosen)))
    numbers = [path for path, value in leaves(config) if isinstance(value, int | float) and not isinstance(value, bool)]
    assert len(numbers) > 40
    for path in numbers:
        for wrong in (-1, 1 << 62, nan, inf):
            with pytest.raises(ConfigError, match=str(path[-1])):
                parse_config(changed(config, path, wrong))


Way = tuple[str | int, ...]


def leaves(data: Any, path: Way = ()) -> Iterator[tuple[Way, Any]]:
    if not isinstance(data, dict | list | tuple):
        yield path, data
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield from leaves(value, (*path, key))


def changed(data: Any, path: Way, value: Any) -> Any:
    """A copy with one leaf exchanged."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)  # type: ignore[index]
    return copy


def test_all_unknown_keys_are_named_at_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, ssd={"bites": "1 GiB"}, share={"replication": {"policy": "hot", "min_hit": 3}}) | {
        "peers": [{"node": "b", "host": "b", "port": 1}, {"node": "c", "host": "c", "port": 1, "prt": 2}],
        "transport": {"engine": "tcp", "threads": 2},
        "zeal": 1,
    }
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    assert sorted(str(caught.value).splitlines()) == [
        "peers[1].prt: unknown key; did you mean port?",
        "share.replication.min_hit: unknown key; did you mean min_hits?",
        "ssd.bites: unknown key; did you mean bytes?",
        "transport.threads: unknown key",
        "zeal: unknown key",
    ]


def test_all_wrong_values_are_named_at_once_beside_unknown_keys(tmp_path: Path) -> None:
    config = config_of(tmp_path, ssd={"bytes": "much", "demote": "never"}) | {"peers": [{"node": "b", "host": 7}], "zeal": 1}
    config["dram"] |= {"bytes": "lots", "eviction": {"policy": "lruu"}, "low_watermark": 2.0}
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    assert sorted(str(caught.value).splitlines()) == [
        "dram.bytes: 'lots' is no size; write bytes or e.g. 8 GiB",
        "dram.eviction.policy: 'lruu' is none of lru, lfu_decay, reuse_per_byte, semantic",
        "peers[0].host: Expected `str`, got `int`",
        "peers[0].port: required",
        "ssd.bytes: 'much' is no size; write bytes or e.g. 8 GiB",
        "ssd.demote: 'never' is none of commit, eviction",
        "zeal: unknown key",
    ]


def test_what_is_no_mapping_is_refused() -> None:
    for raw in (None, [1], "agent"):
        with pytest.raises(ConfigError, match="expected a mapping at the top"):
            parse_config(raw)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file or directory"),
        ("", "expected a mapping at the top, such as `node: NAME`"),
        ("- node: a", "expected a mapping at the top, such as `node: NAME`"),
        ("node: a\nnode: b", "not YAML: key 'node' is given twice, in line 2, column 1"),
        ("node: ]", "not YAML: expected the node content, but found ']' while parsing a block node, in line 1, column 7"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "agent.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}: {told}"


def settings_in(kind: Any) -> set[type]:
    """The settings classes that make up one."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {kind}.union(*(settings_in(hint) for hint in get_type_hints(kind).values()))
    return set().union(*(settings_in(part) for part in get_args(kind)))


def test_every_key_has_a_reader() -> None:
    """A key that nothing reads would promise what is not done. Validation alone is no reading."""
    read: set[str] = set()
    for path in (ROOT / "kvtier").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        checks = {
            id(inner) for node in ast.walk(tree) if getattr(node, "name", "") == "__post_init__" for inner in ast.walk(node)
        }
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in checks}
    keys = {name for kind in settings_in(AgentConfig) for name in kind.__struct_fields__}  # type: ignore[attr-defined]
    assert len(keys) > 40
    assert keys <= read, sorted(keys - read)


def keys_of(kind: Any, path: str = "") -> dict[str, Any]:
    """Every key with its default; sections have none of their own."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        sections = [part for part in settings_in(field.type) if part.__struct_config__.tag is None]  # type: ignore[attr-defined]
        name = f"{path}{field.encode_name}"
        if name.count(".") == 0 and sections:
            found |= keys_of(max(sections, key=lambda part: len(part.__mro__)), f"{name}.")
        else:
            found[name] = field.default
    return found


def test_the_page_lists_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", (ROOT / "docs" / "tiers.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed: dict[str, str] = {}
    for names, defaults in rows:
        keys = re.findall(r"`([^`]+)`", names)
        listed |= dict(zip(keys, defaults.split(", ") if len(keys) > 1 else [defaults], strict=False))
    missing = [key for key in keys_of(AgentConfig) if key not in listed]
    assert not missing
    wrong = {key: listed[key] for key, default in keys_of(AgentConfig).items() if spelled(default) not in (None, listed[key])}
    assert not wrong


def spelled(default: Any) -> str | None:
    """As the page has it; None for what it may say in its own words."""
    if default is msgspec.NODEFAULT:
        return "required"
    if isinstance(default, msgspec.Struct):
        return str(default.__struct_config__.tag)
    if isinstance(default, bool):
        return str(default).lower()
    return default.value if isinstance(default, StrEnum) else f"{default:g}" if isinstance(default, float) else str(default)
