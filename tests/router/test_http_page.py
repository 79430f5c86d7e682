"""docs/http.md tells every route that is served."""

from __future__ import annotations

import random
import re
from pathlib import Path

from router.app import build_app, build_routes
from router.config.load import parse_config
from router.dialects import DIALECTS
from router.errors import GatewayError
from router.gateway import Gateway

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def served() -> set[str]:
    """`METHOD path` of all that the schema tells, and the paths of what it does not."""
    gateway = Gateway(
        parse_config("pools: [{unified: [{url: 'http://127.0.0.1:1'}]}]", "test", {}), lambda: 0.0, random.Random(1)
    )
    routes = build_routes(gateway)
    app = build_app(gateway, routes)
    told = {f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods}
    untold = {path for route in app.routes if (path := getattr(route, "path", None)) is not None}
    return told | untold | set(routes.paths.values())


def test_every_route_is_on_the_page() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    missing = [route for route in served() if not any(names(row, route) for row in rows)]
    assert not missing


def names(row: str, route: str) -> bool:
    """`| PATHS | METHOD |`, or for admin `| METHOD PATH |`."""
    method, _, path = route.rpartition(" ")
    path = path.replace(":path}", "}")
    first, second = row.split("|")[1:3]
    inside = f"`{path}`" in first and method in ("", second.strip())
    return inside or f"`{route}`" in first


def test_every_admin_call_of_the_page_is_served() -> None:
    calls = re.findall(r"^\| `((?:GET|POST|PUT|DELETE) /admin/\S+)`", PAGE, re.MULTILINE)
    assert calls
    assert set(calls) <= served()


def test_every_hot_path_is_there() -> None:
    assert not [path for path in DIALECTS if f"| `{path}` | POST |" not in PAGE]


def test_every_error_code_is_there() -> None:
    codes = {kind.code for kind in descendants(GatewayError) if kind.code}
    assert not [code for code in codes - {"no_capacity"} if f"`{code}`" not in PAGE]


def descendants(kind: type[GatewayError]) -> set[type[GatewayError]]:
    return {kind}.union(*(descendants(child) for child in kind.__subclasses__()))
