"""Pages that must not fall behind: the README's list of pages, the log's events, the policies, the emulator's file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import ROOT, modules

from costmodel.policies import REGISTRY

README_LINES = 150
LEVELS = {"debug", "info", "warning", "error", "exception"}
SERVING = {"router", "engine_adapters"}
ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_readme_is_short_and_links_every_page() -> None:
    text = page("README.md")
    assert text.count("\n") < README_LINES
    wanted = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {"docker/", "configs/", "CONTRIBUTING.md"}
    assert not wanted - set(LINK.findall(text))


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: object) -> None:
    assert isinstance(path, type(ROOT))
    broken = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_links_into_pages_lead_to_a_section(path: Path) -> None:
    found = [
        (path.parent / link if link else path, anchor) for link, anchor in ANCHOR.findall(path.read_text(encoding="utf-8"))
    ]
    broken = [(target.name, anchor) for target, anchor in found if target.suffix == ".md" and anchor not in anchors(target)]
    assert not broken


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_log_event_is_explained() -> None:
    rows = "\n".join(line for line in page("docs/operations.md").splitlines() if line.startswith("| `"))
    assert not [event for event in logged_events() if f"`{event}`" not in rows]


def logged_events() -> set[str]:
    calls = (node for module in modules() if module.layer in SERVING for node in module.nodes if isinstance(node, ast.Call))
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and getattr(call.func.value, "id", "") == "_log"
        and isinstance(call.args[0], ast.Constant)
    }


@pytest.mark.parametrize("name", ["docs/configuration.md", "docs/cost-model.md"])
def test_every_policy_is_listed(name: str) -> None:
    assert not [policy for policy in REGISTRY if f"`{policy}`" not in page(name)]


def test_the_emulators_page_shows_the_file_that_is_shipped() -> None:
    assert page("configs/emulator-1p1d.yaml").split("\n", 2)[2] in page("docs/emulator.md")
