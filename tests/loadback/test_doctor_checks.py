"""What each check says of what it finds."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from costmodel.values import Role
from engine_adapters.base import Endpoint, EngineInfo, EngineKind
from engine_adapters.launch.environments import ROOT
from engine_adapters.launch.ports import free_ports
from engine_adapters.prompt.engine_prompts import EnginePrompts
from engine_adapters.sglang.contract import Clause, Finding, Need, Verdict
from kvtier.transport.links import LinkSettings
from loadback.admin_api import Feed, NodeNumbers, PoolIndex, Predicted, PromptModel, Prompts, Worker
from loadback.doctor import agents
from loadback.doctor.agents import check_agents, check_home, check_node
from loadback.doctor.check import Check, Mark, Target
from loadback.doctor.engine import check_contract, check_pages, check_role, judge_clock, remedy
from loadback.doctor.gateway import check_calibration, check_feed, check_prompt_states, check_worker, target_of
from loadback.doctor.host import check_calibration_path, judge_file_limit
from loadback.doctor.prompt import check_root, load_folder
from router.config.tree import Config, PromptConfig

DATE = "Sun, 29 Nov 2026 12:00:00 GMT"
DATE_S = 1795953600.0


def info(role: Role = Role.PREFILL, page_size: int = 16) -> EngineInfo:
    return EngineInfo(engine="sglang 0.5.23", models=("m",), role=role, page_size=page_size)


def finding(need: Need, verdict: Verdict) -> Finding:
    return Finding(Clause(f"--{need.value}", "set", "something is lost", need, lambda _: verdict), verdict)


@pytest.mark.parametrize(("role", "mark"), [(Role.PREFILL, Mark.OK), (Role.DECODE, Mark.FAIL), (Role.UNIFIED, Mark.FAIL)])
def test_role(role: Role, mark: Mark) -> None:
    target = Target("p0", "main", Role.PREFILL, EngineKind.SGLANG, Endpoint("http://h:1"))
    assert check_role(target, info(role)).mark is mark


@pytest.mark.parametrize(
    ("off_s", "mark"), [(0.0, Mark.OK), (0.9, Mark.OK), (2.6, Mark.WARN), (-2.0, Mark.WARN), (3600.0, Mark.WARN)]
)
def test_clock(off_s: float, mark: Mark) -> None:
    assert judge_clock("p0", DATE, DATE_S + off_s).mark is mark


def test_an_untold_clock_is_no_fault() -> None:
    assert judge_clock("p0", None, DATE_S).mark is Mark.OK


def test_contract_fails_for_required_warns_for_wanted_and_lists_optional() -> None:
    findings = [finding(need, verdict) for need in Need for verdict in (Verdict.OK, Verdict.UNKNOWN, Verdict.MISSING)]
    checks = check_contract("p0", findings)
    assert [(check.name, check.mark) for check in checks] == [
        ("flags", Mark.OK),
        ("--required", Mark.FAIL),
        ("--wanted", Mark.WARN),
    ]
    assert checks[0].found == "6 of 9 as wanted; optional and not set: --optional"
    assert checks[1].fix == "start it with --required"


@pytest.mark.parametrize(
    ("flag", "wanted", "fix"),
    [
        ("--a", "absent", "start it without --a"),
        ("--a", "set on decode", "start it with --a (on decode)"),
        ("--a", "write_through", "start it with --a write_through"),
        ("--a: part", ">= 10", "start it with --a, its part: >= 10"),
    ],
)
def test_the_fix_is_a_sentence(flag: str, wanted: str, fix: str) -> None:
    assert remedy(Clause(flag, wanted, "", Need.WANTED, lambda _: Verdict.OK)) == fix


def test_a_folder_that_is_not_there_is_said_to_be_missing() -> None:
    check = load_folder("main", EngineKind.SGLANG, PromptConfig(model_dir="/nowhere/model"))
    assert isinstance(check, Check)
    assert check.found == "prompt.model_dir: no such folder: /nowhere/model"


def test_pages_must_agree() -> None:
    assert check_pages("main", [("p0", info()), ("p1", info())]).mark is Mark.OK
    differing = check_pages("main", [("p0", info()), ("p1", info(page_size=64))])
    assert (differing.mark, differing.found) == (Mark.FAIL, "differs: p0 16, p1 64")


@pytest.mark.parametrize(
    ("state", "breaker", "mark"),
    [
        ("ready", "closed", Mark.OK),
        ("ready", "open", Mark.WARN),
        ("starting", "closed", Mark.WARN),
        ("down", "closed", Mark.FAIL),
    ],
)
def test_worker_states(state: str, breaker: str, mark: Mark) -> None:
    check = check_worker(Worker(id="p0", state=state, breaker=breaker, last_fault="connection refused"))
    assert check.mark is mark
    assert bool(check.fix) is (mark is not Mark.OK)


def test_a_drained_worker_comes_back_by_being_removed_first() -> None:
    check = check_worker(Worker(id="p0", state="draining", breaker="closed"))
    assert check.mark is Mark.WARN
    assert "DELETE /admin/workers/p0, then POST it again" in check.fix


@pytest.mark.parametrize(("state", "gaps", "mark"), [("live", 0, Mark.OK), ("live", 2, Mark.WARN), ("lost", 0, Mark.WARN)])
def test_feeds(state: str, gaps: int, mark: Mark) -> None:
    assert check_feed("p0", Feed(state=state, gaps=gaps)).mark is mark


@pytest.mark.parametrize(("state", "mark"), [("exact", Mark.OK), ("whole", Mark.WARN), ("lineage", Mark.WARN)])
def test_prompt_states_are_told_per_model(state: str, mark: Mark) -> None:
    model = PromptModel("m", "/v1/messages", state, agreed=7, verified=1, mismatches=3, reason="the engine counted 9")
    own, check = check_prompt_states(PoolIndex("main", "discredited", Prompts(threads=2, bytes=5_000_000, models=[model])))
    assert own.mark is Mark.OK
    assert "5.0 MB" in own.found
    assert (check.mark, check.name) == (mark, "prompts of m at /v1/messages")
    assert "7 counted as by the engine" in check.found
    assert ("the engine counted 9" in check.found) is (mark is Mark.WARN)


def test_prompts_that_cannot_be_had_are_told() -> None:
    (check,) = check_prompt_states(PoolIndex("main", "unusable", Prompts(error="/m has no tokenizer.json")))
    assert (check.mark, check.found.split(":")[0]) == (Mark.WARN, "/m has no tokenizer.json")
    assert check_prompt_states(PoolIndex("main", "not configured")) == []


def test_block_ids_that_cannot_be_derived_are_told() -> None:
    config = PromptConfig(model_dir=str(ROOT / "configs" / "models" / "tiny-agent"))
    prompts = load_folder("main", EngineKind.VLLM, config)
    assert isinstance(prompts, EnginePrompts)
    random = EngineInfo("vllm 0.32", ("m",), page_size=32, flags={"prefix_caching_hash_algo": "xxhash"})
    assert check_root("v0", prompts, EngineInfo("vllm 0.32", ("m",), page_size=32)) is None
    check = check_root("v0", prompts, random)
    assert check is not None
    assert (check.mark, "PYTHONHASHSEED" in check.found) == (Mark.FAIL, True)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("sglang 0.5.23", EngineKind.SGLANG),
        ("loadback-emulator 0.5.23", EngineKind.SGLANG),
        ("vllm 0.32.0", EngineKind.VLLM),
        (None, EngineKind.OPENAI),
    ],
)
def test_a_listed_worker_becomes_a_target(engine: str | None, kind: EngineKind) -> None:
    target = target_of(Worker(id="p0", pool="main", role="prefill", url="http://10.0.0.1:30000", engine=engine))
    assert target == Target("p0", "main", Role.PREFILL, kind, Endpoint("http://10.0.0.1:30000"), "10.0.0.1")


@pytest.mark.parametrize(("limit", "mark"), [(1024, Mark.WARN), (3328, Mark.OK), (-1, Mark.OK)])
def test_file_limit(limit: int, mark: Mark) -> None:
    assert judge_file_limit(limit, turns=1024).mark is mark


@pytest.mark.parametrize(
    ("path", "marks", "told"),
    [
        ("", [], ""),
        ("kept.json", [Mark.OK], "kept in"),
        ("absent/kept.json", [Mark.WARN], "no folder"),
        (".", [Mark.WARN], "is no file"),
    ],
)
def test_where_calibration_is_to_be_kept(tmp_path: Path, path: str, marks: list[Mark], told: str) -> None:
    checks = check_calibration_path(str(tmp_path / path) if path else "")
    assert [check.mark for check in checks] == marks
    assert all(told in check.found for check in checks)


@pytest.mark.parametrize(("fault", "mark"), [("", Mark.OK), ("connection refused", Mark.WARN)])
def test_an_agent_that_a_gateway_does_not_reach(fault: str, mark: Mark) -> None:
    check = check_node(NodeNumbers("n0", up=not fault, fault=fault, numbers={"stored": 1200.0}))
    assert check.mark is mark
    assert (fault or "1,200 pages") in check.found


def test_an_agent_without_workers_of_its_node() -> None:
    assert check_home("n0", {"n0", "n1"}).mark is Mark.OK
    assert "n1, n2" in check_home("n0", {"n2", "n1"}).found


async def test_an_agent_that_nobody_started_is_told_with_its_address() -> None:
    peers = ({"node": "n0", "host": "127.0.0.1", "port": free_ports(1)[0]},)
    pools = ({"unified": ({"url": "http://127.0.0.1:1", "node": "elsewhere"},)},)
    lost, homeless = await check_agents(Config.model_validate({"pools": pools, "agents": peers}))
    assert (lost.mark, homeless.mark) == (Mark.WARN, Mark.WARN)
    assert lost.found.startswith("no connection to n0 at 127.0.0.1:")
    assert "loadback agent" in lost.fix


@pytest.mark.parametrize(("turns", "error", "mark"), [(200, 0.96, Mark.WARN), (200, 0.4, Mark.OK), (39, 0.96, Mark.OK)])
def test_times_that_are_predicted_no_better_than_by_chance(turns: int, error: float, mark: Mark) -> None:
    (check,) = check_calibration(Worker("p0", ttft=Predicted(turns, error, 0.1)))
    assert (check.mark, bool(check.fix)) == (mark, mark is Mark.WARN)


@pytest.mark.parametrize(("term", "mark"), [("prefill", Mark.WARN), ("decode", Mark.WARN), ("transfer", Mark.OK)])
def test_a_term_that_is_off_is_warned_of_where_it_matters(term: str, mark: Mark) -> None:
    (check,) = check_calibration(Worker("d0", terms={term: Predicted(100, 0.9, 0.9)}))
    assert (check.name, check.mark) == (f"time of {term}", mark)
    (drifting,) = check_calibration(Worker("d0", terms={term: Predicted(100, 0.9, 0.9, drifting=True)}))
    assert drifting.mark is Mark.WARN


async def test_an_agent_that_says_nothing_is_told_with_the_time_that_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_LINKS", LinkSettings(connect_ms=300))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = {"node": "n0", "host": "127.0.0.1", "port": mute.getsockname()[1]}
        pools = ({"unified": ({"url": "http://127.0.0.1:1", "node": "n0"},)},)
        lost, _ = await check_agents(Config.model_validate({"pools": pools, "agents": (address,)}))
    assert lost.found.endswith(": no greeting: timed out after 0.3 s")
