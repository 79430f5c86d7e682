"""Imports only point down, without cycles, and the lower layers stay free of what they refuse to know."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest
from source_tree import LAYERS, Module, imported_names, modules

HTTP = {"fastapi", "starlette", "uvicorn", "httpx", "httptools", "http", "socket", "urllib"}
FORBIDDEN = {
    "costmodel": HTTP | {"asyncio", "threading", "uvloop", "zmq", "redis", "time", "yaml", "pydantic"},
    "kvtier": HTTP - {"socket"},
    "engine_adapters": {"fastapi", "uvicorn", "starlette"},
    "router.wire": {"fastapi", "starlette", "httpx", "pydantic"},  # the hot path has no framework inside
    "router.body": {"fastapi", "starlette", "httpx", "pydantic", "asyncio"},
}
# The emulator is a server in its own right: it stands in for an engine, never in front of one.
ALLOWED = {"engine_adapters.emulator": {"starlette", "uvicorn", "fastapi"}}


@pytest.fixture(scope="module")
def sources() -> list[Module]:
    return modules()


def test_every_layer_has_sources(sources: list[Module]) -> None:
    assert {module.layer for module in sources} == set(LAYERS)


def test_imports_point_down(sources: list[Module]) -> None:
    upward = [
        f"{module.name} imports {name}"
        for module in sources
        for name in imported_names(module)
        if (layer := name.split(".")[0]) in LAYERS and LAYERS.index(layer) > LAYERS.index(module.layer)
    ]
    assert not upward, "\n".join(upward)


def test_modules_have_no_import_cycle(sources: list[Module]) -> None:
    assert_acyclic(module_edges(sources))


def test_folders_have_no_import_cycle(sources: list[Module]) -> None:
    units = {module.name: module.unit for module in sources}
    folders: dict[str, set[str]] = {}
    for name, targets in module_edges(sources).items():
        folders.setdefault(units[name], set()).update(units[target] for target in targets)
    assert_acyclic({unit: targets - {unit} for unit, targets in folders.items()})


def test_layers_refuse_what_they_must_not_know(sources: list[Module]) -> None:
    assert not (found := [line for module in sources for line in forbidden_imports(module)]), "\n".join(found)


def test_costmodel_stands_alone(sources: list[Module]) -> None:
    roots = {name.split(".")[0] for module in sources if module.layer == "costmodel" for name in imported_names(module)}
    assert not roots & (set(LAYERS) - {"costmodel"})


def module_edges(sources: list[Module]) -> dict[str, set[str]]:
    """module -> the project's modules it imports, `from package import module` resolved to the module."""
    known = {module.name for module in sources}
    return {
        module.name: {
            target for name in imported_names(module) if (target := longest_known(name, known)) and target != module.name
        }
        for module in sources
    }


def longest_known(name: str, known: set[str]) -> str | None:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def assert_acyclic(edges: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


def forbidden_imports(module: Module) -> list[str]:
    refused = {root for scope, roots in FORBIDDEN.items() if within(module, scope) for root in roots}
    allowed = {root for scope, roots in ALLOWED.items() if within(module, scope) for root in roots}
    roots = {name.split(".")[0] for name in imported_names(module)}
    return [f"{module.name} imports {root}" for root in sorted(roots & (refused - allowed))]


def within(module: Module, scope: str) -> bool:
    return module.name == scope or module.name.startswith(f"{scope}.")
