"""What `up` and `demo` print for clients is what the page of clients says, and their commands work where they are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine_adapters.launch.environments import ROOT
from loadback.guide import chat_body, client_guide, own_command, watch_guide

URL = "http://127.0.0.1:8000"
VARIABLES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "CLAUDE_CODE_MAX_CONTEXT_TOKENS", "OPENAI_BASE_URL", "OPENAI_MODEL")


def test_hints_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    kimi, codex = (section(name) for name in ("Kimi Code", "Codex"))
    for line in (*kimi[1:], *codex[1:]):
        assert line in page
    opencode = json.loads("".join(section("opencode")[1:]))
    shown = page.partition("opencode.json`:\n\n```json\n")[2].partition("```")[0]
    assert opencode == json.loads(shown)
    for variable in VARIABLES:
        assert value(variable, page) == value(variable, client_guide(URL, "tiny-agent", 262_144))


def section(client: str) -> list[str]:
    """The client's own lines, the first one with its name."""
    lines = client_guide(URL, "tiny-agent", 262_144).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(client))
    length = next(number for number, line in enumerate(lines[start + 1 :], 1) if not line.startswith(" "))
    return [line.strip() for line in lines[start : start + length]]


def value(variable: str, text: str) -> str:
    return text.partition(f"{variable}=")[2].split()[0]


def test_a_short_context_leaves_room_for_prompts() -> None:
    guide = client_guide(URL, "m", 16_384)
    assert "max_output_size = 4096" in guide
    assert '"output": 4096' in guide


def test_addresses_with_queries_are_quoted() -> None:
    assert f"curl '{URL}/admin/decisions?limit=5'" in watch_guide(URL, "m", "loadback")


def test_the_body_shown_is_json() -> None:
    assert json.loads(chat_body("m", stream=True)) == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
    }


def test_own_command_is_as_it_was_called() -> None:
    here = Path("/home/me/loadback")
    assert own_command(Path("/home/me/loadback/.venv/bin/loadback"), here) == ".venv/bin/loadback"
    assert own_command(Path(".venv/bin/loadback"), here) == ".venv/bin/loadback"
    assert own_command(Path("/opt/loadback/bin/loadback"), here) == "/opt/loadback/bin/loadback"
    assert own_command(Path("loadback"), here) == "loadback"
    assert own_command(Path("loadback/__main__.py"), Path("/")) == f"{str(sys.executable).removeprefix('/')} -m loadback"
