"""An agent, its clients and its SSD against a dictionary: whatever happens in whatever order, and side by side.

Whoever gets a page gets bytes that somebody put under that name; what was cleared is gone, also for later lives; bytes
under a lease stay; and as long as nothing was lost on purpose, everything that was put can be had, from DRAM or SSD, also in
another life.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from agent_rig import PAGE_BYTES, PATIENT, SPACE, EngineMemory, client_of, config_of, digest, digests, until
from agent_thread import AgentThread
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvtier.client.channel import Channel
from kvtier.client.page_client import PageClient
from kvtier.page.key import page_key
from kvtier.page.status import Status
from kvtier.wire import messages as wire

NUMBERS = 90  # 64 fit DRAM
VARIANTS = 2

starts = st.integers(0, NUMBERS - 12)
counts = st.integers(1, 12)
variants = st.integers(0, VARIANTS - 1)
jobs = st.tuples(st.sampled_from(["put", "get", "look"]), starts, counts, variants)


def content_of(number: int, variant: int) -> bytes:
    return Random(number * VARIANTS + variant).randbytes(PAGE_BYTES)


class Held:
    """Pages under a lease, and their bytes when it began."""

    def __init__(self, lease: int, pages: list[tuple[int, int]], content: list[bytes]) -> None:
        self.lease = lease
        self.pages = pages
        self.content = content


class AgentMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="agent-property-")
        ssd = {"batch_bytes": "256 KiB", "max_writing_bytes": "512 KiB"}
        self.config = config_of(Path(self.folder.name), pool_mib=2, ssd=ssd, watermark=0.9)
        self.epoch = 1
        self.agent = AgentThread(self.config, self.epoch)
        self.clients: list[PageClient] = []
        self.connect()
        self.threads = ThreadPoolExecutor(3)
        self.put_here: dict[int, set[int]] = {}  # number -> variants that were put
        self.gone: set[int] = set()  # cleared, and not put since
        self.sure: set[int] = set()  # can be had unless the agent says that it lost something
        self.lost_before = 0
        self.channel: Channel | None = None
        self.held: list[Held] = []

    # What clients do, one at a time or side by side.

    @rule(start=starts, count=counts, variant=variants)
    def put(self, start: int, count: int, variant: int) -> None:
        self.settle("put", start, count, variant, self.do("put", start, count, variant))

    @rule(start=starts, count=counts)
    def get(self, start: int, count: int) -> None:
        sure = [number in self.sure for number in range(start, start + count)]
        got = self.do("get", start, count, 0)
        if not self.held and not self.lost():
            assert all(whole for whole, certain in zip(got, sure, strict=True) if certain), "something was lost in silence"

    @rule(start=starts, count=counts)
    def look(self, start: int, count: int) -> None:
        self.do("look", start, count, 0)

    @rule(work=st.lists(jobs, min_size=2, max_size=3))
    def side_by_side(self, work: list[tuple[str, int, int, int]]) -> None:
        for kind, start, count, variant in work:
            if kind == "put":  # may be got from now on
                self.remember(start, count, variant)
        done = self.threads.map(lambda client: self.do(*work[client], client=client), range(len(work)))
        for job, result in zip(work, done, strict=True):
            self.settle(*job, result)

    def do(self, kind: str, start: int, count: int, variant: int, client: int = 0) -> list[bool]:
        """One client's call, its bytes compared."""
        numbers = range(start, start + count)
        memory = EngineMemory(numbers, filled=False)
        with_agent = self.clients[client]
        if kind == "look":
            run = with_agent.look(digests(numbers), ssd_pages=count)
            assert all(number in self.put_here for number in numbers[:run])
            assert not self.gone & set(numbers[:run])
            return []
        if kind == "get":
            got = with_agent.get(digests(numbers), memory.pages)
            for index, number in enumerate(numbers):
                if got[index]:
                    assert number not in self.gone
                    assert memory.page(index) in {content_of(number, each) for each in self.put_here.get(number, ())}
            return got
        self.remember(start, count, variant)
        for index, number in enumerate(numbers):
            whole = content_of(number, variant)
            for piece, part in zip(memory.pieces(index), (whole[: PAGE_BYTES // 2], whole[PAGE_BYTES // 2 :]), strict=True):
                memory.write(piece, part)
        return with_agent.put(digests(numbers), memory.pages, start)

    def remember(self, start: int, count: int, variant: int) -> None:
        for number in range(start, start + count):
            self.put_here.setdefault(number, set()).add(variant)
            self.gone.discard(number)

    def settle(self, kind: str, start: int, count: int, variant: int, done: list[bool]) -> None:
        if kind == "put":
            self.sure |= {start + index for index, stored in enumerate(done) if stored}

    # Leases.

    @precondition(lambda self: len(self.held) < 2)
    @rule(start=starts, count=st.integers(1, 6))
    def hold(self, start: int, count: int) -> None:
        if self.channel is None:
            self.channel = Channel(Path(self.config["socket"]), 5.0)
            self.channel.ask(wire.Attach(SPACE), 5.0)
        acquired = self.channel.ask(wire.Acquire(0, digests(range(start, start + count)), 30_000), 5.0)
        assert isinstance(acquired, wire.Acquired)
        if acquired.lease:
            pages = list(zip(acquired.offsets, acquired.lengths, strict=True))
            self.held.append(Held(acquired.lease, pages, self.bytes_of(pages)))

    @precondition(lambda self: self.held)
    @rule()
    def let_go(self) -> None:
        held = self.held.pop(0)
        assert self.bytes_of(held.pages) == held.content
        assert self.channel is not None
        assert self.channel.ask(wire.Renew(held.lease, 1000), 5.0) == wire.Done(Status.OK)
        self.channel.ask(wire.Release(held.lease), 5.0)

    @precondition(lambda self: self.channel is not None)
    @rule()
    def hang_up(self) -> None:
        assert self.channel is not None
        self.channel.close()
        self.channel = None
        self.held.clear()
        until(lambda: not self.agent.inside(lambda agent: agent.store.running_leases), "leases end with their connection")

    def bytes_of(self, pages: list[tuple[int, int]]) -> list[bytes]:
        return list(self.agent.inside(lambda agent: [bytes(agent.pool.view(*page)) for page in pages]))

    # What befalls the agent.

    @rule(number=st.integers(0, NUMBERS - 1), bit=st.integers(0, 8 * PAGE_BYTES - 1))
    def flip(self, number: int, bit: int) -> None:
        def spoil(agent: Any) -> None:
            page = agent.store.catalog.get(page_key(agent.store.meet(SPACE), digest(number)))
            if page is not None and page.in_dram and not page.holds:
                agent.pool.view(page.offset, page.length)[bit // 8] ^= 1 << bit % 8

        self.agent.inside(spoil)
        self.sure.discard(number)

    @rule(really=st.integers(0, 4).map(lambda number: not number))
    def clear(self, really: bool) -> None:
        if really:
            assert self.clients[0].clear()
            self.gone |= set(self.put_here)
            self.sure.clear()

    @rule()
    def restart(self) -> None:
        self.hang_up_if_connected()
        self.lost_before += self.lost_here()
        self.agent.stop()
        self.epoch += 1
        self.agent = AgentThread(self.config, self.epoch)
        self.connect()

    def connect(self) -> None:
        for client in self.clients:
            client.close()
        self.clients = [client_of(self.config, settings=PATIENT) for _ in range(3)]

    def hang_up_if_connected(self) -> None:
        if self.channel is not None:
            self.hang_up()

    def lost(self) -> int:
        return self.lost_before + self.lost_here()

    def lost_here(self) -> int:
        """Pages that left without a copy, and copies that were not made."""
        return int(
            self.agent.inside(
                lambda agent: (
                    agent.store.counters.lost
                    + agent.store.counters.ssd_forgotten
                    + agent.store.counters.demotions_skipped
                    + agent.store.counters.demotions_failed
                )
            )
        )

    @invariant()
    def nothing_of_ours_crashed(self) -> None:
        numbers = self.agent.inside(lambda agent: agent.numbers())
        assert numbers["crashes"] == numbers["mover_crashes"] == numbers["broken_frames"] == 0
        assert numbers["dram_used_bytes"] <= numbers["dram_bytes"]
        until(lambda: self.agent.inside(lambda agent: agent.numbers()["leases"]) == len(self.held), "leases of gets end")

    def teardown(self) -> None:
        self.hang_up_if_connected()
        for client in self.clients:
            client.close()
        self.threads.shutdown()
        self.agent.stop()
        self.folder.cleanup()


TestAgent = pytest.mark.slow(AgentMachine.TestCase)
TestAgent.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
