"""Mooncake's, NIXL's and MoRI's Python modules as far as the adapters use them, moving bytes within this process.

They stand in for the wheels where our own behaviour alone is asked about; the wheels are tried in tests/engines_storage.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

DEADLINE_S = 20.0


class Wire:
    """What all engines of a test share. `gate` holds up every transfer while it is not set; `broken` ones fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self.transfers = 0
        self.started = 0  # at least begun, done or not
        self.registered: dict[int, int] = {}

    def move(self, to: int, start: int, length: int) -> None:
        assert self.holds(to, length)
        assert self.holds(start, length)
        ctypes.memmove(to, start, length)

    def holds(self, address: int, length: int) -> bool:
        return any(base <= address and address + length <= base + size for base, size in self.registered.items())

    def transfer(self, to: Sequence[int], start: Sequence[int], lengths: Sequence[int]) -> bool:
        self.transfers += 1
        self.started += 1
        assert self.gate.wait(DEADLINE_S)
        if self.broken:
            return False
        for each in zip(to, start, lengths, strict=True):
            self.move(*each)
        return True


def mooncake(wire: Wire) -> dict[str, Any]:
    class TransferEngine:
        def initialize(self, host: str, metadata: str, protocol: str, devices: str) -> int:
            return 0 if (metadata, protocol) == ("P2PHANDSHAKE", "tcp") else -1

        def register_memory(self, address: int, length: int) -> int:
            wire.registered[address] = length
            return 0

        def unregister_memory(self, address: int) -> int:
            del wire.registered[address]
            return 0

        def get_rpc_port(self) -> int:
            return 12345

        def batch_transfer_sync_read(
            self, peer: str, to: list[int], start: list[int], lengths: list[int], hint: str = ""
        ) -> int:
            assert peer == "127.0.0.1:12345"
            return 0 if wire.transfer(to, start, lengths) else -1

    return {"mooncake": SimpleNamespace(), "mooncake.engine": SimpleNamespace(TransferEngine=TransferEngine)}


def nixl(wire: Wire) -> dict[str, Any]:
    class BackendError(Exception):
        pass

    class Agent:
        def __init__(self, name: str, config: Any) -> None:
            self.name = name
            self.backends = {each: 1 for each in config.backends if each == "UCX"}

        def get_plugin_list(self) -> list[str]:
            return ["UCX", "POSIX"]

        def register_memory(self, spans: list[tuple[int, int, int, str]], mem_type: str, backends: list[str]) -> int:
            ((address, length, _, _),) = spans
            wire.registered[address] = length
            return address

        def deregister_memory(self, address: int) -> None:
            del wire.registered[address]

        def get_agent_metadata(self) -> bytes:
            return self.name.encode()

        def add_remote_agent(self, metadata: bytes) -> bytes:
            return metadata

        def remove_remote_agent(self, peer: bytes) -> None: ...

        def get_xfer_descs(self, spans: list[tuple[int, int, int]], mem_type: str) -> list[tuple[int, int, int]]:
            return spans

        def initialize_xfer(self, operation: str, ours: Any, theirs: Any, peer: bytes) -> Any:
            assert operation == "READ"
            return SimpleNamespace(ours=ours, theirs=theirs, state="PROC")

        def transfer(self, handle: Any) -> str:
            return "PROC"

        def check_xfer_state(self, handle: Any) -> str:
            if not wire.gate.is_set():
                wire.started += 1
                return "PROC"
            to, start = ([span[0] for span in spans] for spans in (handle.ours, handle.theirs))
            if not wire.transfer(to, start, [span[1] for span in handle.ours]):
                raise BackendError("NIXL_ERR_BACKEND")
            return "DONE"

        def release_xfer_handle(self, handle: Any) -> None: ...

    api = SimpleNamespace(
        nixl_agent=Agent,
        nixl_agent_config=lambda backends, sync_mode: SimpleNamespace(backends=backends),
        nixl_thread_sync_t=SimpleNamespace(NIXL_THREAD_SYNC_STRICT=1),
        nixlBind=SimpleNamespace(nixlBackendError=BackendError),
    )
    return {"nixl": SimpleNamespace(_api=api), "nixl._api": api}


def mori(wire: Wire) -> dict[str, Any]:
    class Described:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def pack(self) -> bytes:
            return self.data

        @classmethod
        def unpack(cls, data: bytes) -> Described:
            return cls(data)

        @property
        def base(self) -> int:
            return int(self.data)

    class Status:
        def __init__(self, transfer: Callable[[], bool]) -> None:
            self._transfer = transfer

        def InProgress(self) -> bool:
            wire.started += 1
            return not wire.gate.is_set()

        def Succeeded(self) -> bool:
            return wire.gate.is_set() and self._transfer()

        def Message(self) -> str:
            return "flushed"

    class Session:
        def __init__(self, ours: Described, theirs: Described) -> None:
            self._bases = (ours.base, theirs.base)

        def allocate_transfer_uid(self) -> int:
            return 1

        def batch_read(self, ours: list[int], theirs: list[int], lengths: list[int], uid: int) -> Any:
            to, start = ([base + at for at in each] for base, each in zip(self._bases, (ours, theirs), strict=True))
            return Status(lambda: wire.transfer(to, start, lengths))

    class IOEngine:
        def __init__(self, name: str, config: Any) -> None:
            self._name = name

        def create_backend(self, kind: str) -> None:
            if wire.broken:
                raise RuntimeError("no RDMA device")

        def register_memory(self, address: int, length: int, device: int, location: str) -> Described:
            assert (device, location) == (-1, "cpu")
            wire.registered[address] = length
            return Described(str(address).encode())

        def deregister_memory(self, memory: Described) -> None:
            del wire.registered[memory.base]

        def get_engine_desc(self) -> Described:
            return Described(self._name.encode())

        def register_remote_engine(self, peer: Described) -> None: ...

        def create_session(self, ours: Described, theirs: Described) -> Session:
            return Session(ours, theirs)

    io = SimpleNamespace(
        IOEngine=IOEngine,
        IOEngineConfig=lambda host, port: (host, port),
        BackendType=SimpleNamespace(RDMA="rdma"),
        MemoryLocationType=SimpleNamespace(CPU="cpu"),
        EngineDesc=Described,
        MemoryDesc=Described,
    )
    return {"mori": SimpleNamespace(io=io), "mori.io": io}


DOUBLES = {"mooncake": mooncake, "nixl": nixl, "mori": mori}
