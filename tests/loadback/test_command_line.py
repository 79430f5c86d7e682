"""The command from outside: help that teaches, checks of configuration, exit statuses."""

from __future__ import annotations

import re
import socket
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_adapters.launch.environments import ROOT
from loadback.commands import build

COMMANDS = [
    ("serve",),
    ("agent",),
    ("sglang-plugin",),
    ("vllm-plugin",),
    ("up",),
    ("demo",),
    ("explain",),
    ("doctor",),
    ("bench", "swarm"),
    ("bench", "overhead"),
    ("bench", "reach"),
    ("bench", "tiers"),
    ("bench", "deltatok"),
]
GOOD = "pools:\n  - unified: [{url: 'http://127.0.0.1:1', name: u0}]\n"


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), list(words), env={"COLUMNS": "200", "NO_COLOR": "1"})
    return result.exit_code, re.sub(r"\x1b\[[0-9;]*m", "", result.output)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(command: tuple[str, ...]) -> None:
    status, text = invoke(*command, "--help")
    assert status == 0
    assert "Example" in text
    assert f"loadback {' '.join(command)}" in text


def test_the_version_is_told_and_the_help_knows_of_it() -> None:
    assert invoke("--version") == (0, f"loadback {version('loadback')}\n")
    status, text = invoke("--help")
    assert status == 0
    assert "--version" in text
    assert "A cache-aware gateway" in text


def test_check_tells_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    status, text = invoke("serve", "--config", str(file), "--check", "--port", "9")
    assert status == 0
    assert "listens on 127.0.0.1:9, policy cost" in text
    assert "u0" in text


@pytest.mark.parametrize(("section", "fix"), [("listen", ": choose another --port"), ("umbp", "")])
def test_a_port_that_somebody_has_is_told_in_one_line(tmp_path: Path, section: str, fix: str) -> None:
    file = tmp_path / "gateway.yaml"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file.write_text(
            "\n".join({"listen": "listen: {port: 0}", section: f"{section}: {{port: {port}}}"}.values()) + f"\n{GOOD}"
        )
        status, text = invoke("serve", "--config", str(file))
    key = "" if section == "listen" else f"{section}.port: "
    assert status == 1
    assert text == f"loadback: {key}cannot listen on 127.0.0.1:{port} (Address already in use){fix}\n"


def test_a_master_on_the_gateways_own_port_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    with socket.create_server(("127.0.0.1", 0)) as lent:
        port = lent.getsockname()[1]
    file.write_text(f"listen: {{port: {port}}}\numbp: {{port: {port}}}\n{GOOD}")
    told = f"loadback: umbp.port: the gateway itself is to listen on 127.0.0.1:{port}: choose another\n"
    assert invoke("serve", "--config", str(file)) == (1, told)


def test_check_tells_what_runs_beside_the_turns(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    lines = invoke("serve", "--config", str(file), "--check")[1].splitlines()
    assert lines[-3:] == ["agents: none", "prefetch: disabled", "umbp: no master"]
    file.write_text(
        GOOD
        + "agents: [{node: a, host: h, port: 7}]\n"
        + "prefetch: {mode: dry_run, triggers: [decision, explicit], warm: false}\n"
        + "umbp: {port: 9}\n"
    )
    lines = invoke("serve", "--config", str(file), "--check")[1].splitlines()
    assert lines[-3:] == [
        "agents: a at h:7",
        "prefetch: dry_run, triggers decision, explicit, without warm requests",
        "umbp: master of UMBP on 127.0.0.1:9",
    ]


def test_check_names_every_fault_with_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("pools:\n  - unified: [{url: 'ftp://x'}]\npolicy: {nme: cost}\n")
    status, text = invoke("serve", "--config", str(file), "--check")
    assert status == 1
    lines = text.strip().splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(file), "pools.0.unified.0.url"],
        [str(file), "policy.nme"],
    ]


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(GOOD + "poolss: []\npolicy: {switch_marginms: 1, zeal: 1}\n")
    text = invoke("serve", "--config", str(file), "--check")[1]
    assert sorted(line.removeprefix(f"{file}: ") for line in text.splitlines()) == [
        "policy.switch_marginms: unknown key; did you mean switch_margin_ms?",
        "policy.zeal: unknown key",
        "poolss: unknown key; did you mean pools?",
    ]


def test_a_file_of_the_other_command_is_told_whose_it_is(tmp_path: Path) -> None:
    gateway, agent = tmp_path / "gateway.yaml", ROOT / "configs" / "agent" / "node.yaml"
    gateway.write_text(GOOD)
    for command, file, told in (
        (["agent"], gateway, f"the file of a gateway: loadback serve --config {gateway}"),
        (["serve"], agent, f"the file of an agent: loadback agent --config {agent}"),
        (["doctor"], agent, f"the file of an agent: loadback agent --config {agent}"),
    ):
        status, text = invoke(*command, "--config", str(file), *([] if command == ["doctor"] else ["--check"]))
        assert status == 1
        assert text.rstrip().endswith(told)
        assert len(text.splitlines()) == 1


def test_a_missing_file_is_named() -> None:
    status, text = invoke("serve", "--config", "/nowhere.yaml", "--check")
    assert status == 1
    assert "/nowhere.yaml" in text


@pytest.mark.parametrize(
    "words",
    [("serve",), ("serve", "--config", "x", "--port", "99999"), ("up", "--policy", "best"), ("doctor",), ("nonsense",)],
    ids=" ".join,
)
def test_usage_errors_have_status_2(words: tuple[str, ...]) -> None:
    assert invoke(*words)[0] == 2


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.name)
def test_the_examples_are_good(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{([A-Z_]+)\}", file.read_text()):
        monkeypatch.setenv(name, "secret")
    status, text = invoke("serve", "--config", str(file), "--check")
    assert status == 0, text
