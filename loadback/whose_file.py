"""Tells a gateway's file from an agent's, for whoever gave one to the other's command."""

from __future__ import annotations

from pathlib import Path

from kvtier.settings.yaml_file import YamlFault, read_yaml


def whose_file(file: Path) -> str | None:
    """The command that such a file belongs to, `serve` or `agent`; None where that cannot be told."""
    try:
        tree = read_yaml(file)
    except YamlFault:
        return None
    keys = set(tree) if isinstance(tree, dict) else set()
    if ("pools" in keys) == ("dram" in keys):
        return None
    return "serve" if "pools" in keys else "agent"


def faults_of(file: Path, command: str, error: Exception) -> str:
    """What is wrong with it, or in one line that it is the other command's."""
    owner = whose_file(file)
    if owner in (None, command):
        return str(error)
    whom = "a gateway" if owner == "serve" else "an agent"
    return f"{file}: this is the file of {whom}: loadback {owner} --config {file}"
