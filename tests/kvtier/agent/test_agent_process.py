"""Agents that are killed (mid-put, mid-get, mid-demotion) and clients that are: what was committed and reached SSD survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from agent_rig import (
    PAGE_BYTES,
    PATIENT,
    ROOT,
    SPACE,
    AgentDidNotStart,
    AgentProcess,
    agent_process,
    config_of,
    content,
    digests,
    get,
    put,
    until,
)

from kvtier.client.channel import Channel
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.checksum import page_checksum
from kvtier.ssd.recovery import recover
from kvtier.wire import messages as wire

pytestmark = pytest.mark.slow

Connect = Callable[..., PageClient]
QUICK = ClientSettings(connect_s=1, look_s=1, get_s=1, put_s=1, retry_s=0.05)


def stat(path: Path, name: str) -> float:
    channel = Channel(path, 5.0)
    try:
        reply = channel.ask(wire.AskStats(), 5.0)
    finally:
        channel.close()
    assert isinstance(reply, wire.Stats)
    return reply.numbers[name]


def test_pages_survive_a_kill_on_ssd(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    client = connect(config)
    with agent_process(config, tmp_path) as agent:
        assert put(client, range(80)) == [True] * 80
        until(lambda: stat(Path(config["socket"]), "demoted") == 80, "all on SSD")
        agent.kill()
    assert get(client, range(80)) == [False] * 80
    with agent_process(config, tmp_path):
        until(lambda: get(client, range(80)) == [True] * 80, "the client meets the new life")


def test_what_was_cleared_stays_forgotten_after_a_kill(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    client = connect(config)
    with agent_process(config, tmp_path) as agent:
        assert put(client, range(40)) == [True] * 40
        assert client.clear()  # while they are being written
        assert put(client, range(100, 110)) == [True] * 10
        until(lambda: stat(Path(config["socket"]), "unwritten_pages") == 0, "on SSD")
        agent.kill()
    with agent_process(config, tmp_path):
        until(lambda: get(client, range(100, 110)) == [True] * 10, "the client meets the new life")
        assert get(client, range(40)) == [False] * 40


def test_the_next_life_of_an_agent_is_asked_at_once(tmp_path: Path, connect: Connect) -> None:
    """Though the client waits for long after a failure, and answers of the last life are still on their way to it."""
    config = config_of(tmp_path, ssd={})
    client = connect(config, SPACE, msgspec.structs.replace(PATIENT, retry_s=3600))
    for number in range(3):
        with agent_process(config, tmp_path) as agent:
            assert put(client, [number]) == [True]
            until(lambda: stat(Path(config["socket"]), "unwritten_pages") == 0, "on SSD")
            assert get(client, range(number + 1)) == [True] * (number + 1)
            agent.kill()
    assert client.counters.failures == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_costs_pages_but_never_serves_wrong_ones(tmp_path: Path, connect: Connect, seed: int) -> None:
    """Puts, gets and demotions are under way when it comes."""
    config = config_of(tmp_path, pool_mib=2, ssd={"batch_bytes": "256 KiB", "max_writing_bytes": "256 KiB"})
    client = connect(config, settings=QUICK)
    done = threading.Event()

    def work() -> None:
        rng = Random(seed)
        while not done.is_set():
            start = rng.randrange(300)
            (put if rng.random() < 0.5 else get)(client, range(start, start + 16))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    with agent_process(config, tmp_path) as agent:
        try:
            for worker in workers:
                worker.start()
            until(lambda: stat(Path(config["socket"]), "demoted") > 60 * (seed + 1), "work under way")  # of 316 pages
            agent.kill()
        finally:
            done.set()
            for worker in workers:
                worker.join()
    for page in recover(tmp_path / "a-ssd").pages:  # what was written whole
        with (tmp_path / "a-ssd" / f"{page.segment:012d}.lbkv").open("rb") as segment:
            data = os.pread(segment.fileno(), page.record.length, page.record.offset)
        assert page_checksum(data) == page.record.checksum
        assert data == content(page.record.depth)
    with agent_process(config, tmp_path):
        until(lambda: any(get(client, range(0, 300))), "pages come back")


IN_A_SMALL_DEVICE = 'mkdir -p "$0" && mount -t tmpfs -o size=6m none "$0" && exec "$@"'


def test_a_full_device_costs_copies_and_nothing_else(tmp_path: Path, connect: Connect) -> None:
    """Real ENOSPC: the settings promise 64 MiB, the device has 6, in a mount namespace of the agent's own."""
    config = config_of(tmp_path, pool_mib=8, ssd={"full_backoff_ms": 50})
    client = connect(config)
    path = Path(config["socket"])
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    before = ["unshare", "--mount", *user, "sh", "-c", IN_A_SMALL_DEVICE, config["ssd"]["directory"]]
    with agent_process(config, tmp_path, before):
        for start in range(0, 600, 50):  # 19 MiB
            assert put(client, range(start, start + 50)) == [True] * 50
        assert get(client, range(550, 600)) == [True] * 50
        until(lambda: stat(path, "demotions_failed") + stat(path, "demotions_skipped") > 0, "the device is full")
        assert stat(path, "ssd_segments") <= 2
        assert (stat(path, "crashes"), stat(path, "mover_crashes")) == (0, 0)
        got = get(client, range(600))  # whatever there is, is right
        assert sum(got) >= 100
        assert put(client, range(700, 720)) == [True] * 20


HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {rig!r})
from agent_rig import *
from kvtier.client.channel import Channel
from kvtier.wire import messages as wire
channel = Channel(Path(sys.argv[1]), 5.0)
space = channel.ask(wire.Attach(SPACE), 5.0).space
channel.ask(wire.Acquire(space, digests(range(8)), 30_000), 5.0)
channel.ask(wire.Reserve(space, digests(range(100, 108)), PAGE_BYTES), 5.0)
print("holding", flush=True)
time.sleep(60)
"""


def test_a_killed_client_holds_nothing(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path)
    with agent_process(config, tmp_path):
        put(connect(config), range(8))
        script = HOLDER.format(rig=str(Path(__file__).parent))
        with subprocess.Popen(
            [sys.executable, "-c", script, config["socket"]],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as holder:  # fmt: skip
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            path = Path(config["socket"])
            assert (stat(path, "leases"), stat(path, "writes_open")) == (1, 8)
            holder.kill()
            until(lambda: stat(path, "leases") == stat(path, "writes_open") == 0, "given back")
            assert stat(path, "dram_used_bytes") == 8 * PAGE_BYTES


def test_an_agent_that_hangs_costs_no_more_than_the_deadline(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path)
    client = connect(config, settings=ClientSettings(connect_s=5, look_s=1, get_s=1, put_s=5, retry_s=3600))
    with agent_process(config, tmp_path) as agent:
        assert put(client, [1]) == [True]
        agent.process.send_signal(signal.SIGSTOP)
        assert client.look(digests([1])) == 0
        assert (get(client, [1]), put(client, [2]), client.counters.failures) == ([False], [False], 3)
        agent.process.send_signal(signal.SIGCONT)
        other = connect(config)
        assert get(other, [1]) == [True]


def test_a_stop_is_clean(tmp_path: Path, connect: Connect) -> None:
    config = config_of(tmp_path, ssd={})
    with agent_process(config, tmp_path) as agent:
        put(connect(config), range(8))
        assert agent.stop() == 0
    assert not Path(config["socket"]).exists()
    with agent_process(config, tmp_path):
        assert stat(Path(config["socket"]), "recovered") == 8


@pytest.mark.parametrize("same", ["socket", "ssd"])
def test_two_agents_do_not_share_a_socket_or_a_directory(tmp_path: Path, same: str) -> None:
    config = config_of(tmp_path, ssd={})
    other = config_of(tmp_path, node="b", ssd={})
    if same == "socket":
        other["socket"] = config["socket"]
    else:
        other["ssd"]["directory"] = config["ssd"]["directory"]
    with agent_process(config, tmp_path), pytest.raises(AgentDidNotStart, match="another agent"):
        AgentProcess(other, tmp_path)
