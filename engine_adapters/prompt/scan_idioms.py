"""Loops by which reasoning templates look for the last question of the user, replaced by one look.

They go over the whole conversation before anything is printed, and would make every turn cost its length again. Only loops of
exactly the known shapes are replaced, whatever their variables are called; the look finds the same message.
"""

from __future__ import annotations

from collections.abc import Iterator

import jinja2
from jinja2 import nodes

LOOK = "loadback_last_query"

_LITERAL = frozenset({"messages", "loop"})


_NOT_A_RESULT = "not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>'))"
_BACKWARDS = """{% for message in messages[::-1] %}
{% set index = (messages|length - 1) - loop.index0 %}
{% if ns.flag and message.role == "user" and GUARD %}{% set ns.flag = false %}{% set ns.place = index %}{% endif %}
{% endfor %}"""
_SHAPES = {
    _BACKWARDS.replace("GUARD", f"message.content is string and {_NOT_A_RESULT}"): True,  # Qwen3
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.place = loop.index0 %}{% endif %}{% endfor %}": False,  # GLM 4.5
}


def replace_scans(body: list[nodes.Node], environment: jinja2.Environment) -> None:
    """Put a look in the place of each known loop among these nodes.

    It is called with the namespace, the name of its member that becomes the place of the user's last message, and that of a
    flag, or nothing, that is true before and becomes false; where there is one, tool results that come as the user's text do
    not count.
    """
    known = {_dump(environment.parse(source).body[0])[0]: flagged for source, flagged in _SHAPES.items()}
    for place, node in enumerate(body):
        if not isinstance(node, nodes.For):
            continue
        dump, names = _dump(node)
        flagged = known.get(dump)
        spaces = {ref.name for ref in node.find_all(nodes.NSRef)}
        if flagged is None or len(spaces) != 1:
            continue
        (namespace,) = spaces
        attributes = [name.partition(".")[2] for name in names if "." in name]
        flag, index = attributes if flagged else (None, *attributes)
        arguments = [nodes.Name(namespace, "load"), nodes.Const(index), nodes.Const(flag)]
        body[place] = nodes.ExprStmt(nodes.Call(nodes.Name(LOOK, "load"), arguments, [], None, None))


def _dump(node: nodes.Node) -> tuple[str, list[str]]:
    """A form in which only the names of variables are left out; and those names, in the order in which they come."""
    spaces = {ref.name for ref in node.find_all(nodes.NSRef)}
    names: list[str] = []
    return "".join(_pieces(node, spaces, names)), names


def _pieces(value: object, spaces: set[str], names: list[str]) -> Iterator[str]:
    if isinstance(value, nodes.NSRef):
        yield _numbered(f"{value.name}.{value.attr}", names)
    elif isinstance(value, nodes.Getattr) and isinstance(value.node, nodes.Name) and value.node.name in spaces:
        yield _numbered(f"{value.node.name}.{value.attr}", names)
    elif isinstance(value, nodes.Name):
        yield value.name if value.name in _LITERAL else _numbered(value.name, names)
    elif isinstance(value, nodes.Output) and all(_is_blank(part) for part in value.nodes):
        return
    elif isinstance(value, nodes.Node):
        yield f"{type(value).__name__}("
        for field, item in value.iter_fields(exclude=("ctx",)):
            yield f"{field}="
            yield from _pieces(item, spaces, names)
        yield ")"
    elif isinstance(value, list | tuple):
        yield "["
        for item in value:
            yield from _pieces(item, spaces, names)
        yield "]"
    else:
        yield repr(value)


def _numbered(name: str, names: list[str]) -> str:
    if name not in names:
        names.append(name)
    return f"${names.index(name)}"


def _is_blank(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TemplateData) and not node.data.strip()
