"""Pages between two agents by transfer engines: verified, settled whatever happens, refused clearly where they cannot run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from engine_double import DOUBLES, Wire

from kvtier.agent.agent import Agent
from kvtier.agent.config import ConfigError, parse_config
from kvtier.agent.fetcher import Fetched
from kvtier.agent.process import run_agent
from kvtier.page.checksum import page_checksum
from kvtier.page.key import page_key
from kvtier.page.space import PageSpace
from kvtier.page.status import Status
from kvtier.store.tiering import SELF
from kvtier.transport.one_sided import TransportUnavailable
from kvtier.wire.messages import Peer

SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
PAGE_BYTES = 32_768
ENGINES = sorted(DOUBLES)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wire(engine: str, monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    for name, module in DOUBLES[engine](wire).items():
        monkeypatch.setitem(sys.modules, name, module)
    return wire


def config_of(folder: Path, node: str, **transport: Any) -> dict[str, Any]:
    dram = {"bytes": "4 MiB", "slab_bytes": "512 KiB", "backing": "plain", "prefault": False}
    socket = str(folder / f"{node}.sock")
    return {
        "node": node,
        "socket": socket,
        "dram": dram,
        "listen": {"host": "127.0.0.1"},
        "tick_ms": 20,
        "transport": transport,
    }


@asynccontextmanager
async def agents(folder: Path, **transports: dict[str, Any]) -> AsyncIterator[list[Agent]]:
    """One for each node, by its name."""
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        running = []
        made = []
        for node, transport in transports.items():
            agent, ready = Agent(parse_config(config_of(folder, node, **transport)), epoch=1), asyncio.Event()
            running.append(asyncio.create_task(agent.run(stop, ready)))
            await asyncio.wait_for(ready.wait(), 10)
            made.append(agent)
        stack.push_async_callback(lambda: asyncio.gather(*running))
        stack.callback(stop.set)
        yield made


def content(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


def digests(numbers: range) -> bytes:
    return b"".join(number.to_bytes(32, "little") for number in numbers)


def fill(agent: Agent, numbers: range) -> None:
    """As a client would have."""
    space = agent.store.meet(SPACE)
    for number in numbers:
        key = page_key(space, digests(range(number, number + 1)))
        reserved = agent.store.reserve([key], PAGE_BYTES, SELF, 0.0)
        agent.pool.view(reserved.offsets[0], PAGE_BYTES)[:] = content(number)
        assert agent.store.commit(reserved.write_id, page_checksum(content(number)), SELF, 0.0) is Status.OK


def held(agent: Agent, number: int) -> bytes | None:
    page = agent.store.catalog.get(page_key(agent.store.meet(SPACE), digests(range(number, number + 1))))
    return bytes(agent.pool.view(page.offset, page.length)) if page is not None else None


def peer_of(agent: Agent) -> Peer:
    return Peer(agent.config.node, "127.0.0.1", agent.port)


async def fetch(near: Agent, far: Agent, numbers: range, deadline_ms: float = 5000) -> Fetched:
    now_ms = 1000 * asyncio.get_running_loop().time()
    return await near.fetcher.fetch(SPACE, digests(numbers), peer_of(far), now_ms + deadline_ms)


async def test_pages_arrive_whole_and_none_on_the_link(tmp_path: Path, engine: str, wire: Wire) -> None:
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(20))
        fetched = await fetch(near, far, range(22))
        assert fetched.statuses == [Status.OK] * 20 + [Status.MISS] * 2
        assert [held(near, number) for number in range(20)] == [content(number) for number in range(20)]
        assert near.links.counters.received_bytes == 0
        assert (await fetch(near, far, range(3))).statuses == [Status.OK] * 3
        assert wire.transfers == 1
        assert len(wire.registered) == 2
    assert wire.registered == {}


async def test_a_page_that_rots_is_not_kept(tmp_path: Path, engine: str, wire: Wire) -> None:
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(3))
        page = far.store.catalog.get(page_key(far.store.meet(SPACE), digests(range(1, 2))))
        assert page is not None
        far.pool.view(page.offset, 1)[0] ^= 1
        assert (await fetch(near, far, range(3))).statuses == [Status.OK, Status.CORRUPT, Status.OK]
        await near.fetcher.close()
        assert held(near, 1) is None
        assert far.store.counters.corrupt_dram == 1  # it was told, looked, and agreed
        assert len(near.store.tiering.writes) == 0


async def test_a_transfer_that_fails_leaves_nothing(tmp_path: Path, engine: str, wire: Wire) -> None:
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(3))
        wire.broken = True
        assert (await fetch(near, far, range(3))).statuses == [Status.BUSY] * 3
        assert (near.fetcher.counters.fetches_failed, len(near.store.tiering.writes)) == (1, 0)
        wire.broken = False
        assert (await fetch(near, far, range(3))).statuses == [Status.OK] * 3


async def test_what_still_writes_keeps_its_place(tmp_path: Path, engine: str, wire: Wire) -> None:
    """The fetch ends at its deadline; the bytes stay claimed until the engine is through with them."""
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(3))
        wire.gate.clear()
        assert (await fetch(near, far, range(3), deadline_ms=500)).statuses == [Status.BUSY] * 3
        assert len(near.store.tiering.writes) == 3
        assert near.store.tiering.dram.slabs.used_bytes == 3 * PAGE_BYTES
        wire.gate.set()
        await near.fetcher.close()
        assert (len(near.store.tiering.writes), near.store.tiering.dram.slabs.used_bytes) == (0, 0)


@pytest.mark.parametrize("engine", ["mori", "nixl"])  # Mooncake bounds its reads itself
async def test_an_agent_ends_while_a_peer_is_silent(tmp_path: Path, engine: str, wire: Wire) -> None:
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(3))
        wire.gate.clear()
        assert (await fetch(near, far, range(3), deadline_ms=50)).statuses == [Status.BUSY] * 3
    assert len(near.store.tiering.writes) == 0
    assert wire.registered == {}


async def test_a_lease_that_ended_meanwhile_is_not_believed(tmp_path: Path, engine: str, wire: Wire) -> None:
    async with agents(tmp_path, far={"engine": engine}, near={"engine": engine}) as (far, near):
        fill(far, range(3))
        wire.gate.clear()
        fetching = asyncio.create_task(fetch(near, far, range(3)))
        async with asyncio.timeout(10):
            while not wire.started:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)
        for owner in range(10):
            far.store.close_owner(owner)
        wire.gate.set()
        assert (await fetching).statuses == [Status.BUSY] * 3
        assert len(near.store.tiering.writes) == 0


async def test_nodes_that_differ_say_so(tmp_path: Path, engine: str, wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with agents(tmp_path, far={"engine": "tcp"}, near={"engine": engine}) as (far, near):
        fill(far, range(2))
        assert (await fetch(near, far, range(2))).statuses == [Status.BUSY] * 2
        assert f"transport.engine is tcp here and {engine} there" in caplog.text
        assert len(near.store.tiering.writes) == 0


def refusal(folder: Path, capsys: pytest.CaptureFixture[str], **transport: Any) -> str:
    assert run_agent(parse_config(config_of(folder, "a", **transport))) == 1
    return capsys.readouterr().err


def test_an_absent_wheel_is_named(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, engine, None)  # type: ignore[arg-type]
    said = refusal(tmp_path, capsys, engine=engine)
    assert f"agent a cannot start: transport.engine {engine} needs" in said
    assert f"pip install 'loadback[{engine}]'" in said


@pytest.mark.parametrize(
    ("engine", "transport", "said"),
    [
        ("mooncake", {"protocol": "rdma"}, "set transport.protocol to tcp"),
        ("mooncake", {"host": "0.0.0.0"}, "set transport.host"),
        ("nixl", {"backend": "GDS"}, "transport.backend GDS is none of NIXL's backends here: UCX, POSIX"),
        ("mori", {"host": "::"}, "set transport.host"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, wire: Wire, transport: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, capsys, engine=engine, **transport)


@pytest.mark.parametrize("engine", ["mori"])
async def test_mori_without_a_device_says_so(tmp_path: Path, engine: str, wire: Wire) -> None:
    wire.broken = True
    with pytest.raises(TransportUnavailable, match="RDMA device on this machine"):
        Agent(parse_config(config_of(tmp_path, "a", engine=engine)), epoch=1)


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ({"engine": "rocket"}, "rocket"),
        ({"engine": "mooncake", "protocol": "smoke"}, "smoke"),
        ({"engine": "nixl", "host": "127.0.0.1"}, "host"),
        ({"engine": "nixl", "threads": 0}, "transport.threads: Expected `int` >= 1"),
    ],
)
def test_wrong_words_are_named(tmp_path: Path, transport: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(config_of(tmp_path, "a", **transport))
