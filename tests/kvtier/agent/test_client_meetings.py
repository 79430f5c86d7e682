"""An agent that cannot be met is away for the engine, whatever the reason: never an exception."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from agent_rig import PATIENT, SPACE, digests

from kvtier.client.copier import PortableCopier
from kvtier.client.page_client import PageClient
from kvtier.wire import messages as wire
from kvtier.wire.frames import HEADER_BYTES, pack_frame, unpack_header

POOL_BYTES = 1 << 20
Greet = Callable[[int, int], PageClient]


@pytest.fixture
def greet(tmp_path: Path) -> Iterator[Greet]:
    """Clients of an agent that says so many bytes and sends this descriptor; it names a space whatever it is asked."""
    path = tmp_path / "agent.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    clients: list[PageClient] = []
    serving: list[Thread] = []

    def serve(pool_bytes: int, fd: int) -> None:
        there, _ = listener.accept()
        with there:
            greeting = wire.Greeting(wire.PROTOCOL_VERSION, "a", 1, pool_bytes, "plain")
            socket.send_fds(there, [pack_frame(0, wire.encode(greeting))], [fd])
            while len(header := there.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES:
                call, body_bytes, _ = unpack_header(header)
                there.recv(body_bytes, socket.MSG_WAITALL)
                there.sendall(pack_frame(call, wire.encode(wire.Attached(0))))

    def client(pool_bytes: int, fd: int) -> PageClient:
        serving.append(Thread(target=serve, args=(pool_bytes, fd)))
        serving[-1].start()
        clients.append(PageClient(path, SPACE, PortableCopier(1), PATIENT))
        return clients[-1]

    yield client
    for each in clients:
        each.close()
    for thread in serving:
        thread.join()
    listener.close()


@pytest.mark.parametrize("pool_bytes", [0, -1, 2 * POOL_BYTES, 1 << 62])
def test_memory_of_another_size_is_not_mapped(greet: Greet, pool_bytes: int) -> None:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, POOL_BYTES)
    client = greet(pool_bytes, fd)
    assert client.look(digests([1])) == 0
    assert client.counters.failures == 1
    os.close(fd)


def test_a_descriptor_that_is_no_memory_is_not_mapped(greet: Greet) -> None:
    ends = os.pipe()
    client = greet(POOL_BYTES, ends[0])
    assert client.look(digests([1])) == 0
    assert client.counters.failures == 1
    for fd in ends:
        os.close(fd)


def test_an_engine_without_descriptors_computes_on(tmp_path: Path) -> None:
    client = PageClient(tmp_path / "agent.sock", SPACE, PortableCopier(1), PATIENT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert client.look(digests([1])) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert client.counters.failures == 1
    client.close()
