"""House figures: sizes, globals, the environment, and a configuration page that tells the truth."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

import pytest
import yaml
from pydantic import BaseModel
from source_tree import ROOT, Module, modules

from router.config.tree import Config

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
ROW = re.compile(r"^\| `(?P<key>[a-z0-9_]+)` \| (?P<default>[^|]+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def sources() -> list[Module]:
    return modules()


def test_files_are_short(sources: list[Module]) -> None:
    tests = {path: path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")}
    sizes = tests | {module.path: module.lines for module in sources}
    assert not [f"{path}: {lines} lines" for path, lines in sizes.items() if lines > MAX_FILE_LINES]


def test_test_files_have_names_of_their_own() -> None:
    """Two of one name cannot be collected by one run of pytest, though each can alone."""
    counts = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert not [name for name, count in counts.items() if count > 1 and name not in ("conftest.py", "__init__.py")]


def test_functions_are_short(sources: list[Module]) -> None:
    long = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in sources
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_nothing_rebinds_a_global(sources: list[Module]) -> None:
    assert not [module.path for module in sources for node in module.nodes if isinstance(node, ast.Global)]


def test_only_the_config_reads_the_environment(sources: list[Module]) -> None:
    readers = {module.name for module in sources for node in module.nodes if reads_environment(node)}
    assert readers <= {"router.config.load"}


def test_every_module_says_its_job(sources: list[Module]) -> None:
    silent = [module.path for module in sources if module.tree.body and not ast.get_docstring(module.tree)]
    assert not silent


def test_configuration_page_lists_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    documented = {
        title: {match["key"]: match["default"].strip().strip("`") for match in ROW.finditer(text)}
        for title, _, text in (part.partition("\n") for part in page.split("\n## ")[1:])
    }
    assert documented == {title_of(section): defaults_of(section) for section in sections_of(Config)}


def reads_environment(node: ast.AST) -> bool:
    names = {"environ", "environb", "getenv"}
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in names for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in names and getattr(node.value, "id", "") == "os"


def sections_of(section: type[BaseModel]) -> set[type[BaseModel]]:
    inner = {kind for field in section.model_fields.values() for kind in section_types(field.annotation)}
    return {section}.union(*(sections_of(kind) for kind in inner))


def section_types(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from section_types(part)


def title_of(section: type[BaseModel]) -> str:
    return section.__name__.removesuffix("Config") or "Top level"


def defaults_of(section: type[BaseModel]) -> dict[str, str]:
    return {
        name: "required" if field.is_required() else spell(field.get_default()) for name, field in section.model_fields.items()
    }


def spell(default: object) -> str:
    """A default as YAML's flow style spells it; a section that is all defaults is described under its own title."""
    if isinstance(default, BaseModel):
        given = default.model_dump(mode="json", exclude_unset=True)
        return spell(given) if given else "its defaults"
    if isinstance(default, tuple):
        default = [str(each) if isinstance(each, StrEnum) else each for each in default]
    return yaml.safe_dump(str(default) if isinstance(default, StrEnum) else default, default_flow_style=True).split("\n")[0]
