"""Every line of the real command's log has the form that was asked for, whoever wrote it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from waiting import DEADLINE_S

from engine_adapters.launch.tether import tether

pytestmark = pytest.mark.slow

TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
OFFER = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"


async def log_of_a_run(tmp_path: Path, json_lines: bool) -> tuple[bytes, list[str]]:
    """What garbage was answered with, and the log of a gateway that was sent it and then stopped."""
    tree = {"listen": {"port": 0}, "pools": [{"unified": [{"url": "http://127.0.0.1:1"}]}], "log": {"json_lines": json_lines}}
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "loadback", "serve", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, preexec_fn=tether())
    assert process.stderr is not None
    async with asyncio.timeout(3 * DEADLINE_S):
        lines = [(await process.stderr.readuntil(b"\n"))]
        while b"listening" not in lines[-1]:
            lines.append(await process.stderr.readuntil(b"\n"))
        found = re.search(rb"http://[\d.]+:(\d+)", lines[-1])
        assert found is not None
        await exchange(int(found[1]), OFFER)
        answer = await exchange(int(found[1]), TLS_HELLO)
        process.terminate()
        rest = await process.stderr.read()
        assert await process.wait() == 0
    return answer, b"".join([*lines, rest]).decode().splitlines()


async def exchange(port: int, message: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(message)
    answer = await reader.read()
    writer.close()
    return answer


async def test_every_line_is_one_json_object(tmp_path: Path) -> None:
    answer, lines = await log_of_a_run(tmp_path, json_lines=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    told = [json.loads(line) for line in lines]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in told)
    assert [line["client"] for line in told if line["event"] == "request_unreadable"] == ["127.0.0.1"]


async def test_every_line_of_text_begins_with_its_time(tmp_path: Path) -> None:
    _, lines = await log_of_a_run(tmp_path, json_lines=False)
    assert [line for line in lines if "request_unreadable" in line]
    assert not [line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[", line)]
