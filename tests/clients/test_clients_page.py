"""The page tells users what the tests do."""

from __future__ import annotations

import shlex

import pytest
from agent_cli import ROOT, AgentCli
from cli_catalogue import EVERY_CLI

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
GATEWAY = "http://127.0.0.1:8000"


@pytest.mark.parametrize("cli", EVERY_CLI, ids=lambda cli: cli.name)
def test_the_page_has_the_tried_configuration(cli: AgentCli) -> None:
    for name, text in cli.files.items():
        assert f"~/{name}" in PAGE
        assert text.replace("$URL", GATEWAY) in PAGE
    for name, value in cli.env.items():
        assert f"{name}={value.replace('$URL', GATEWAY)}" in PAGE
    for command in filter(None, (cli.command, cli.resume)):
        assert shlex.join(command) in PAGE


def test_the_page_has_the_pinned_versions() -> None:
    pins = (ROOT / "scripts" / "envs" / "clients.npm").read_text(encoding="utf-8").split()
    lock = (ROOT / "scripts" / "envs" / "clients.lock").read_text(encoding="utf-8").splitlines()
    pins += [line for line in lock if line.startswith("mini-swe-agent==")]
    assert not [pin for pin in pins if pin not in PAGE]
