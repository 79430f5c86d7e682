"""What libraries log comes in the form of the gateway's own lines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import logging, sys, warnings
import structlog
from router.config.tree import LogConfig
from router.logs import configure_logs
configure_logs(LogConfig(json_lines=True, level=sys.argv[1]))
structlog.get_logger().warning("own")
logging.getLogger("httpx").info("a request")
logging.getLogger("asyncio").error("two\\nlines")
warnings.warn("careful", stacklevel=1)
try:
    raise ValueError("x")
except ValueError:
    logging.getLogger("uvicorn.error").exception("in the application")
"""


def logged(level: str) -> list[dict[str, str]]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, level], capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_lines_of_libraries_have_the_same_form() -> None:
    own, *others = logged("info")
    assert own["event"] == "own"
    assert [(line["logger"], line["level"]) for line in others] == [
        ("asyncio", "error"),
        ("py.warnings", "warning"),
        ("uvicorn.error", "error"),
    ]
    assert others[0]["event"] == "two\nlines"
    assert others[2]["exception"].endswith("ValueError: x")


def test_the_level_holds_for_them_too() -> None:
    assert [line["event"] for line in logged("error")] == ["two\nlines", "in the application"]
