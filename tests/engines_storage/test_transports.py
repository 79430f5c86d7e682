"""The real wheels: Mooncake and NIXL move verified pages between two agents over TCP, and MoRI says why it cannot run here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from transport_rig import DEADLINE_S, PAGE_BYTES, POOL_BYTES, ROOT, TransportNode, transport_nodes, until

pytestmark = [pytest.mark.engines]

TRANSPORTS = {"mooncake": {"engine": "mooncake", "protocol": "tcp"}, "nixl": {"engine": "nixl", "backend": "UCX"}}
PAGES = range(60)


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> dict[str, Any]:
    return TRANSPORTS[request.param]


def test_verified_pages_move_between_agents(tmp_path: Path, transport: dict[str, Any]) -> None:
    with transport_nodes(tmp_path, far=transport, near=transport) as (far, near):
        far.put(PAGES)
        assert near.got([0, 1]) == [False, False]
        staged = near.stage(PAGES, far.peer)
        assert (staged.state, staged.leading, staged.fetched_bytes) == ("ready", 60, 60 * PAGE_BYTES)
        assert near.got(PAGES) == [True] * 60
        numbers = near.numbers()
        assert numbers["received_bytes"] == 0  # none came on the link
        assert (numbers["fetched_pages"], numbers["corrupt_received"]) == (60, 0)
        near.put(range(100, 104))
        assert far.stage(range(100, 104), near.peer).state == "ready"  # and the other way round
        assert far.got(range(100, 104)) == [True] * 4
        flipped_bits_are_found_on_arrival(far, near)
        assert (near.stop(), far.stop()) == (0, 0)


def flipped_bits_are_found_on_arrival(far: TransportNode, near: TransportNode) -> None:
    far.put(range(200, 220))
    rng = Random(5)
    for start in range(0, POOL_BYTES, PAGE_BYTES):
        far.memory.view(start + rng.randrange(PAGE_BYTES), 1)[0] ^= 1 << rng.randrange(8)
    staged = near.stage(range(200, 220), far.peer)
    assert (staged.state, staged.leading) == ("partial", 0)
    assert near.numbers()["corrupt_received"] == 20
    assert near.got(range(200, 220)) == [False] * 20
    until(lambda: far.numbers()["corrupt_dram"] == 20, "the owner hears of each")  # behind the fetch


def test_a_peer_that_dies_comes_back_and_freezes(tmp_path: Path, transport: dict[str, Any]) -> None:
    with transport_nodes(tmp_path, near=transport) as (near,):
        with transport_nodes(tmp_path, far=transport) as (far,):
            far.put(range(8))
            assert near.stage(range(8), far.peer).state == "ready"
        assert near.stage(range(40, 42), far.peer, deadline_ms=2000).leading == 0
        with transport_nodes(tmp_path, far=transport) as (far,):
            far.put(range(8, 20))
            assert near.stage(range(8, 16), far.peer).state == "ready"
            os.kill(far.process.pid, signal.SIGSTOP)  # it takes connections and answers nothing
            assert near.stage(range(16, 20), far.peer, deadline_ms=500).leading == 0
            assert near.got(range(16)) == [True] * 16
            if transport["engine"] == "nixl":  # Mooncake lets go of a silent peer after 30 s
                assert near.stop() == 0
                return
        until(lambda: near.numbers()["writes_open"] == 0, "claims are given back")


def test_mori_says_what_it_needs(tmp_path: Path) -> None:
    """No wheel for this Python, and no ROCm: a start is refused, not a request."""
    config = {
        "node": "a",
        "socket": str(tmp_path / "a.sock"),
        "dram": {"bytes": "4 MiB", "slab_bytes": "1 MiB", "backing": "plain"},
        "transport": {"engine": "mori", "host": "127.0.0.1"},
    }
    (tmp_path / "a.yaml").write_bytes(msgspec.yaml.encode(config))
    ended = subprocess.run(
        [sys.executable, "-m", "kvtier.agent", str(tmp_path / "a.yaml")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "needs ROCm (libamdhip64), an RDMA device and the extra: pip install 'loadback[mori]'" in ended.stderr
