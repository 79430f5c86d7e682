"""The command against an embedded pool of its own: sessions, doctor, explain, and nothing left behind however it ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_adapters.launch.ports import free_ports

pytestmark = pytest.mark.slow
LOADBACK = (sys.executable, "-m", "loadback")
DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class Up:
    process: subprocess.Popen[str]
    url: str
    config: Path
    pids: tuple[int, ...]


def start_up() -> Up:
    port = free_ports(1, first=19560)[0]
    process = subprocess.Popen([*LOADBACK, "up", "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if "Ctrl-C stops everything" in line:
            break
    config = re.search(r"config: (\S+)\)", text)
    assert config, text
    pids = tuple(int(pid) for pid in re.findall(r"pid (\d+)", text))
    return Up(process, f"http://127.0.0.1:{port}", Path(config[1]), pids)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    running = start_up()
    yield running
    running.process.terminate()
    running.process.wait(DEADLINE_S)
    assert running.process.stdout is not None
    running.process.stdout.close()


def loadback(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LOADBACK, *words], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def last_line(result: subprocess.CompletedProcess[str]) -> dict[str, object]:
    value = json.loads(result.stdout.strip().splitlines()[-1])
    assert isinstance(value, dict)
    return value


def test_doctor_finds_an_embedded_pool_well(up: Up) -> None:
    for words in (("--url", up.url), ("--config", str(up.config))):
        result = loadback("doctor", *words, "--json")
        assert result.returncode == 0, result.stdout
        checks = last_line(result)["checks"]
        assert isinstance(checks, list)
        assert {check["mark"] for check in checks} == {"OK"}, checks
        assert any(check["name"].startswith("events") for check in checks)


def test_doctor_fails_for_a_role_that_is_not_so(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "swapped.yaml"
    text = re.sub(r"\n *bootstrap_port: .*", "", up.config.read_text())  # which only prefill workers may have
    file.write_text(text.replace("prefill:", "other:").replace("decode:", "prefill:").replace("other:", "decode:"))
    result = loadback("doctor", "--config", str(file))
    assert result.returncode == 1
    assert "FAIL" in result.stdout
    assert "--disaggregation-mode" in result.stdout


def test_doctor_fails_where_nothing_answers(tmp_path: Path) -> None:
    file = tmp_path / "nobody.yaml"
    file.write_text("pools:\n  - unified: [{url: 'http://127.0.0.1:9', name: nobody}]\n")
    assert loadback("doctor", "--config", str(file)).returncode == 1
    result = loadback("doctor", "--url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "start it" in result.stdout


def test_explain_weighs_every_pair(up: Up) -> None:
    body = json.dumps({"model": "tiny-agent", "messages": [{"role": "user", "content": "hello"}]})
    answer = last_line(loadback("explain", "-", "--url", up.url, "--json", stdin=body))
    others = answer["others"]
    assert isinstance(others, list)
    assert {answer["worker"], *(other["worker"] for other in others)} == {"p0>d0", "p1>d0"}
    shown = loadback("explain", "-", "--url", up.url, stdin=body).stdout
    assert str(answer["policy"]) in shown
    assert loadback("explain", "-", "--url", up.url, stdin="{").returncode == 1


def test_swarm_runs_against_any_gateway(up: Up) -> None:
    result = loadback("bench", "swarm", "--url", up.url, "--sessions", "2", "--turns", "2", "--idle-s", "0", "--json")
    assert result.returncode == 0, result.stderr
    summary = last_line(result)
    assert (summary["turns"], summary["errors"]) == (2 * 2 + 3 * 2, 0)


def test_demo_once_ends_with_its_figures() -> None:
    port = str(free_ports(1, first=19580)[0])
    result = loadback("demo", "--once", "--port", port)
    assert result.returncode == 0, result.stderr
    summary = last_line(result)
    assert set(summary) == {
        *("engine", "turns", "errors", "first_call_hit", "later_call_hit", "ttft_ms", "predicted"),
        *("tokens_by_tier", "agent_bytes", "prefetch"),
    }
    assert (summary["engine"], summary["turns"], summary["errors"]) == ("emulator", 30, 0)
    later = summary["later_call_hit"]
    assert isinstance(later, float)
    assert later > 0.5
    assert "p0>d0" in result.stdout
    tokens, moved, prefetch = (summary[name] for name in ("tokens_by_tier", "agent_bytes", "prefetch"))
    assert isinstance(tokens, dict)
    assert isinstance(moved, dict)
    assert isinstance(prefetch, dict)
    assert min(moved["engine_to_l3"], moved["l3_to_engine"], moved["l3_to_ssd"]) > 0
    assert tokens["L3"] + prefetch["warmed_bytes"] > 0, "what the agent gave served a turn, or was there before it came"
    assert sum(tokens.values()) > tokens["computed"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_running(number: signal.Signals) -> None:
    running = start_up()
    assert running.process.stdout is not None
    running.process.send_signal(number)
    status = running.process.wait(DEADLINE_S)
    running.process.stdout.close()
    assert status == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    assert running.config.exists() is (number is signal.SIGKILL)
    shutil.rmtree(running.config.parent, ignore_errors=True)
    deadline = time.monotonic() + DEADLINE_S
    while any(is_running(pid) for pid in running.pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in running.pids if is_running(pid)]


def test_a_taken_port_is_told_in_one_line(up: Up) -> None:
    result = loadback("up", "--port", up.url.rpartition(":")[2])
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"loadback: cannot listen on {up.url.removeprefix('http://')} (Address already in use): choose another --port"
    ]


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
