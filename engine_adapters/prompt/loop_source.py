"""Rewrites a chat template so that its loop over the messages may begin at any of them and says where each begins.

The loop keeps its meaning: it goes over a window of the messages, and what its body reads of `loop` still counts from the first
message. Calls to `loadback_*` are put before, into and behind it; `loop_run` answers them. Templates whose shape does not allow
this (several loops that print messages, a loop inside a condition, stateful loop helpers) are refused, and are rendered whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from engine_adapters.prompt.scan_idioms import replace_scans

ENTER, WINDOW, MARK, LEAVE = "loadback_enter", "loadback_window", "loadback_mark", "loadback_leave"
START, BEFORE = "loadback_start", "loadback_before"

_FROM_THE_END = frozenset({"length", "revindex", "revindex0"})
_UNCHANGED = frozenset({"last", "nextitem", "depth", "depth0"})


class NotLoopWise(Exception):
    """The template cannot be begun at a message; says why."""


class LoopShape(msgspec.Struct, frozen=True):
    """`names`: variables set before the loop, in the order in which `ENTER` is given them. `looks_ahead`: the body may read the
    next message through `loop`. `counts_from_end`: it reads how many follow."""

    names: tuple[str, ...]
    looks_ahead: bool
    counts_from_end: bool


def rewrite(template: nodes.Template) -> LoopShape:
    """Changes the parsed template in place. Raises NotLoopWise."""
    place = _main_loop(template)
    loop = template.body[place]
    assert isinstance(loop, nodes.For)
    if loop.test is not None or loop.else_ or loop.recursive:
        raise NotLoopWise("the loop over messages has a condition, an else part or calls itself")
    body = _LoopVariable()
    loop.body = [body.visit(node) for node in loop.body]
    names = tuple(sorted(_set_names(template.body[:place])))
    if template.environment is not None and "messages" not in names:
        head = template.body[:place]
        replace_scans(head, template.environment)
        template.body[:place] = head
    assert isinstance(loop.iter, nodes.Expr)
    loop.iter = _call(WINDOW, loop.iter)
    loop.body.insert(0, nodes.ExprStmt(_call(MARK)))
    template.body.insert(place + 1, nodes.ExprStmt(_call(LEAVE)))
    template.body.insert(place, nodes.ExprStmt(_call(ENTER, *(nodes.Name(name, "load") for name in names))))
    if template.environment is not None:
        template.set_environment(template.environment)
    template.set_lineno(1)
    return LoopShape(names, body.looks_ahead, body.counts_from_end)


def _main_loop(template: nodes.Template) -> int:
    related = _related_names(template)
    places = [
        place
        for place, node in enumerate(template.body)
        if isinstance(node, nodes.For) and _reads_any(node.iter, related) and node.find(nodes.Output) is not None
    ]
    if len(places) != 1:
        raise NotLoopWise(f"{len(places)} loops at the top level print messages, not one")
    return places[0]


def _related_names(template: nodes.Template) -> set[str]:
    """`messages` and every variable that is set from it, directly or not."""
    related = {"messages"}
    assignments = list(template.find_all(nodes.Assign))
    grown = -1
    while grown != len(related):
        grown = len(related)
        for assignment in assignments:
            if _reads_any(assignment.node, related):
                related |= set(_targets(assignment.target))
    return related


def _reads_any(node: nodes.Node, names: set[str]) -> bool:
    own = [node] if isinstance(node, nodes.Name) else []
    return any(name.name in names for name in (*own, *node.find_all(nodes.Name)))


def _set_names(body: list[nodes.Node]) -> set[str]:
    found: set[str] = set()
    for node in body:
        for kind in (nodes.Assign, nodes.AssignBlock):
            inner = [node] if isinstance(node, kind) else []
            for assignment in [*inner, *node.find_all(kind)]:
                found |= set(_targets(assignment.target))  # type: ignore[attr-defined]  # both have one
    return found


def _targets(target: nodes.Node) -> Iterator[str]:
    if isinstance(target, nodes.Name):
        yield target.name
    elif isinstance(target, nodes.Tuple):
        for item in target.items:
            yield from _targets(item)


class _LoopVariable(NodeTransformer):
    """Makes `loop` in the loop's own body count from the first message, wherever the window begins."""

    def __init__(self) -> None:
        self.looks_ahead = False
        self.counts_from_end = False

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """An inner loop has a `loop` of its own, but what it goes over is read outside of it."""
        node.iter = self.visit(node.iter)
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if not (isinstance(node.node, nodes.Name) and node.node.name == "loop"):
            return self.generic_visit(node)
        if node.attr in ("index", "index0"):
            return nodes.Add(node, nodes.Name(START, "load"))
        if node.attr == "first":
            return _is_zero(nodes.Add(_loop("index0"), nodes.Name(START, "load")))
        if node.attr == "previtem":
            inside = nodes.And(_loop("first"), nodes.Not(_is_zero(nodes.Name(START, "load"))))
            return nodes.CondExpr(inside, nodes.Name(BEFORE, "load"), node)
        self.looks_ahead |= node.attr == "nextitem"
        self.counts_from_end |= node.attr in _FROM_THE_END
        if node.attr not in _UNCHANGED and node.attr not in _FROM_THE_END:
            raise NotLoopWise(f"loop.{node.attr} depends on what the loop did before")
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name == "loop":
            raise NotLoopWise("the loop variable is used as a whole")
        return node


def _loop(attribute: str) -> nodes.Getattr:
    return nodes.Getattr(nodes.Name("loop", "load"), attribute, "load")


def _is_zero(value: nodes.Expr) -> nodes.Compare:
    return nodes.Compare(value, [nodes.Operand("eq", nodes.Const(0))])


def _call(name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load"), list(arguments), [], None, None)
