"""The project's own sources as syntax trees, for the tests that check the house rules."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("costmodel", "kvtier", "engine_adapters", "router", "bench", "loadback")  # lowest first


@dataclass(frozen=True, slots=True)
class Module:
    name: str  # dotted, without `.__init__`
    path: Path
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # all of the tree
    lines: int

    @property
    def layer(self) -> str:
        return self.name.split(".")[0]

    @property
    def unit(self) -> str:
        """The folder a module lives in, or the module itself where it lies at the top of its layer."""
        inside = self.path.relative_to(ROOT).parent.parts
        return ".".join(inside) if len(inside) > 1 else self.name


@functools.cache
def modules() -> list[Module]:
    """Read once a run, for every test that looks at them."""
    gc.disable()  # a million nodes that all stay: collecting in between doubles the time
    try:
        return [_read(path) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
    finally:
        gc.enable()


def _read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    text = path.read_text(encoding="utf-8")
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(text)
    return Module(name, path, tree, tuple(ast.walk(tree)), text.count("\n"))


def imported_names(module: Module) -> Iterator[str]:
    """Everything a module imports, wherever the statement stands; `from a import b` gives `a.b`."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{_source(module, node)}.{alias.name}" for alias in node.names)


def _source(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)
