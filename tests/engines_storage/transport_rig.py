"""Agents as processes that find the transfer engines' wheels, and pages made from numbers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from engine_adapters.launch.environments import ROOT, engine_bin
from kvtier.client.channel import Channel
from kvtier.client.copier import PortableCopier
from kvtier.client.engine_pages import EnginePages
from kvtier.client.memory import SharedMemory
from kvtier.client.page_client import ClientSettings, PageClient
from kvtier.page.space import PageSpace
from kvtier.wire import messages as wire

SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
PAGE_BYTES = 256 << 10
POOL_BYTES = 64 << 20
PATIENT = ClientSettings(connect_s=20, look_s=20, get_s=20, put_s=20, lease_s=60, retry_s=0.05)
DEADLINE_S = 60.0
ENDED = {"ready", "partial", "full", "expired", "cancelled", "failed"}


def path_with_wheels(folder: Path) -> str:
    """A PYTHONPATH of ours and, of SGLang's environment, Mooncake and NIXL alone."""
    wheels = folder / "wheels"
    if not wheels.exists():
        wheels.mkdir()
        packages = engine_bin("sglang").parent / "lib" / "python3.11" / "site-packages"
        for name in ("mooncake", "nixl"):
            for package in packages.glob(f"{name}*"):
                (wheels / package.name).symlink_to(package)
    return os.pathsep.join((str(ROOT), str(wheels)))


def content(number: int) -> bytes:
    return Random(number).randbytes(PAGE_BYTES)


def digests(numbers: Sequence[int]) -> bytes:
    return b"".join(sha256(number.to_bytes(8, "little")).digest() for number in numbers)


class TransportNode:
    """One agent, a client of it, and a bare connection."""

    def __init__(self, folder: Path, node: str, transport: dict[str, Any]) -> None:
        self.node = node
        socket = folder / f"{node}.sock"
        dram = {"bytes": POOL_BYTES, "slab_bytes": "1 MiB", "backing": "plain", "prefault": False}
        config = {"node": node, "socket": str(socket), "dram": dram, "listen": {"host": "127.0.0.1"}, "transport": transport}
        path = folder / f"{node}.yaml"
        path.write_bytes(msgspec.yaml.encode(config))
        self._log = (folder / f"{node}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvtier.agent", str(path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "PYTHONPATH": path_with_wheels(folder), "UCX_TLS": "tcp", "MC_TCP_BIND_ADDRESS": "127.0.0.1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if not said.startswith("ready"):
            self._end()
            raise AssertionError(said + Path(self._log.name).read_text())
        self.peer = wire.Peer(node, "127.0.0.1", int(said.rpartition("=")[2]))
        self.client = PageClient(socket, SPACE, PortableCopier(1), PATIENT)
        self._channel = Channel(socket, DEADLINE_S)
        self.memory = SharedMemory(self._channel.take_memory_fd(), POOL_BYTES)
        self.space = self.ask(wire.Attach(SPACE)).space

    def close(self) -> None:
        self.client.close()
        self._channel.close()
        self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def stop(self) -> int:
        """As an operator would."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def ask(self, request: wire.Request) -> Any:
        return self._channel.ask(request, DEADLINE_S)

    def numbers(self) -> dict[str, float]:
        numbers: dict[str, float] = self.ask(wire.AskStats()).numbers
        return numbers

    def put(self, numbers: Sequence[int]) -> None:
        whole = ctypes.create_string_buffer(b"".join(map(content, numbers)), PAGE_BYTES * len(numbers))
        assert all(self.client.put(digests(numbers), _pages(whole, len(numbers))))

    def got(self, numbers: Sequence[int]) -> list[bool]:
        """Whether each page is had here; what is had is what was put."""
        whole = ctypes.create_string_buffer(PAGE_BYTES * len(numbers))
        had = self.client.get(digests(numbers), _pages(whole, len(numbers)))
        for index, (number, there) in enumerate(zip(numbers, had, strict=True)):
            found = whole.raw[index * PAGE_BYTES : (index + 1) * PAGE_BYTES]
            assert not there or found == content(number), "wrong bytes were served"
        return had

    def stage(self, numbers: Sequence[int], source: wire.Peer, deadline_ms: float = 20_000) -> wire.Staging:
        """To its end."""
        begun = self.ask(wire.Stage(self.space, digests(numbers), [source], deadline_ms))
        staging: wire.Staging = begun

        def ended() -> bool:
            nonlocal staging
            staging = self.ask(wire.AskStage(begun.stage))
            return staging.state in ENDED

        until(ended, f"stage {begun.stage} ends")
        return staging


@contextmanager
def transport_nodes(folder: Path, **transports: dict[str, Any]) -> Iterator[list[TransportNode]]:
    with ExitStack() as stack:
        nodes = []
        for node, transport in transports.items():
            nodes.append(TransportNode(folder, node, transport))
            stack.callback(nodes[-1].close)
        yield nodes


def until(true: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.01)


def _pages(whole: ctypes.Array[ctypes.c_char], count: int) -> EnginePages:
    return EnginePages.striped([(ctypes.addressof(whole), PAGE_BYTES)], count)
