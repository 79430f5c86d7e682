"""vLLM 0.32's rule for whether a chat template wants message content as text or as parts: it looks for a loop over content.

Wire: renderers/hf.py (`_detect_content_format`). SGLang's rule is another one (`PromptTemplate.content_format`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import jinja2
from jinja2 import nodes

from engine_adapters.prompt.template import ContentFormat, parse_template


class _Unreadable(Exception):
    """A loop or assignment over messages that does not name one variable."""


def content_format_of(source: str) -> ContentFormat:
    """Text where the template cannot be read, as the engine does."""
    try:
        root = parse_template(source)
        return "openai" if next(_content_loops(root), None) is not None else "string"
    except (jinja2.TemplateError, _Unreadable):
        return "string"


def _content_loops(root: nodes.Node) -> Iterator[nodes.For]:
    messages = [_name(loop) for loop in _message_loops(root)]
    bound = _macro_bound_loops(root, messages)
    in_macros = {id(loop) for macro in root.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)}
    for loop in root.find_all(nodes.For):
        if any(_accesses(loop.iter, name, "content") for name in messages) or (
            isinstance(loop.iter, nodes.Name)
            and (loop.iter.name in bound.get(id(loop), ()) or (id(loop) not in in_macros and loop.iter.name == "content"))
        ):
            yield loop


def _message_loops(root: nodes.Node) -> Iterator[nodes.For]:
    lists = list(_aliases(root, "messages"))
    for loop in root.find_all(nodes.For):
        if any(_accesses(loop.iter, name) for name in lists):
            yield loop


def _aliases(root: nodes.Node, name: str) -> Iterator[str]:
    """The variable and those assigned from it, or from a part of it."""
    yield name
    waiting = deque([name])
    while waiting:
        related = waiting.popleft()
        for assignment in root.find_all(nodes.Assign):
            if _accesses(assignment.node, related):
                target = _target_name(assignment.target)
                yield target
                if target != related:
                    waiting.append(target)


def _macro_bound_loops(root: nodes.Node, messages: list[str]) -> dict[int, set[str]]:
    """Per loop inside a macro, the macro's parameters that are given some message's content."""
    bound: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        parameters = [argument.name for argument in macro.args]
        found: set[str] = set()
        for call in root.find_all(nodes.Call):
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            given = [*zip(parameters, call.args, strict=False), *((pair.key, pair.value) for pair in call.kwargs)]
            found |= {
                name
                for name, value in given
                if name in parameters and any(_accesses(value, message, "content") for message in messages)
            }
        if found:
            bound.update({id(loop): found for loop in macro.find_all(nodes.For)})
    return bound


def _accesses(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether the node is the variable, or its member `key`; perhaps filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _accesses(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _accesses(node.node, name, key)
    if key is None:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_name(node.node, name) and isinstance(node.arg, nodes.Const) and bool(node.arg.value == key)
    return isinstance(node, nodes.Getattr) and _is_name(node.node, name) and node.attr == key


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _name(loop: nodes.For) -> str:
    return _target_name(loop.target)


def _target_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unreadable
    return target.name
