"""The engine contract: its checks over real servers' facts, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from costmodel.values import Role
from engine_adapters.base import EngineInfo
from engine_adapters.models_list import ServedModels
from engine_adapters.sglang.contract import CLAUSES, Clause, Verdict, examine
from engine_adapters.sglang.discovery import engine_info

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "engines"


def captured(name: str) -> EngineInfo:
    return engine_info((DATA / f"{name}_server_info.json").read_bytes(), ServedModels(), "http://h:1")


def missing(info: EngineInfo) -> set[str]:
    return {finding.clause.flag for finding in examine(info) if finding.verdict is Verdict.MISSING}


def with_flags(info: EngineInfo, **flags: str | bool | None) -> EngineInfo:
    return msgspec.structs.replace(info, flags=info.flags | flags)


def test_what_the_captured_servers_lack() -> None:
    tiers = {"--enable-hierarchical-cache", "--hicache-storage-backend", "--enable-priority-scheduling"}
    assert missing(captured("sglang_pd_prefill")) == tiers
    assert missing(captured("sglang")) == tiers
    assert missing(captured("sglang_pd_decode")) == {
        "--disaggregation-decode-enable-radix-cache",
        "--disaggregation-decode-enable-offload-kvcache",
        "--enable-priority-scheduling",
    }


def test_a_server_that_tells_nothing_is_asked_for_little() -> None:
    findings = examine(EngineInfo(engine="sglang unknown", models=("m",)))
    assert {finding.clause.flag for finding in findings if finding.verdict is Verdict.MISSING} == {
        "--kv-events-config",
        "--kv-events-config: replay_endpoint",
        "--enable-cache-report",
    }


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"allow_auto_truncate": True}, "--allow-auto-truncate"),
        ({"abort_on_priority_when_disabled": True}, "--abort-on-priority-when-disabled"),
        ({"tool_call_parser": None}, "--tool-call-parser"),
        ({"kv_events_config": '{"buffer_steps":10}'}, "--kv-events-config: buffer_steps"),
        ({"kv_events_config": '{"format":"dynamo"}'}, "--kv-events-config: format"),
        ({"enable_hierarchical_cache": True, "hicache_write_policy": "write_back"}, "--hicache-write-policy"),
    ],
)
def test_each_wrong_flag_is_found(flags: dict[str, str | bool | None], lacks: str) -> None:
    before = captured("sglang")
    assert lacks not in missing(before)
    assert lacks in missing(with_flags(before, **flags))


def test_ranks_need_rooms_to_be_followed() -> None:
    info = msgspec.structs.replace(captured("sglang_pd_prefill"), dp_size=2)
    assert "--load-balance-method" in missing(with_flags(info, load_balance_method="round_robin"))
    assert "--load-balance-method" not in missing(info)


def test_events_of_every_page_size_but_one_are_fine() -> None:
    assert "--page-size" in missing(msgspec.structs.replace(captured("sglang"), page_size=1))


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 4]
    assert rows == [row(clause) for clause in CLAUSES]


def row(clause: Clause) -> str:
    roles = "all" if clause.roles == frozenset(Role) else ", ".join(role.value for role in Role if role in clause.roles)
    return f"| `{clause.flag}` | {clause.wanted.replace('|', ' or ')} | {roles} | {clause.need.value} | {clause.lost} |"
