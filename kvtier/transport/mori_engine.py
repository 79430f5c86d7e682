"""AMD's MoRI IO engine (https://github.com/ROCm/mori) as a one-sided engine over RDMA.

It runs where ROCm's runtime and an RDMA device are, and in the Python that its wheel (amd-mori, for the extra) or its build is
for. Written after its sources of release 1.2.4; no machine that could run it was at hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from kvtier.transport.one_sided import Span, TransferFailed, TransportUnavailable

_NO_DEVICE = -1
_POLL_S = 0.0005


class _Introduction(msgspec.Struct, frozen=True, array_like=True):
    engine: bytes
    memory: bytes


class MoriEngine:
    """`name` must differ from that of every peer and of every earlier life of this node."""

    def __init__(self, name: str, host: str, address: int, length: int) -> None:
        """Raises `TransportUnavailable`."""
        self._io = _io()
        try:
            self._engine = self._io.IOEngine(name, self._io.IOEngineConfig(host=host, port=0))
            self._engine.create_backend(self._io.BackendType.RDMA)
            self._memory = self._engine.register_memory(address, length, _NO_DEVICE, self._io.MemoryLocationType.CPU)
        except RuntimeError as error:
            raise TransportUnavailable(f"transport.engine mori needs an RDMA device on this machine: {error}") from error
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._sessions: dict[bytes, Any] = {}
        self.introduction = msgspec.msgpack.encode(
            _Introduction(self._engine.get_engine_desc().pack(), self._memory.pack()),
        )

    def read(self, introduction: bytes, spans: Sequence[Span]) -> None:
        """Raises `TransferFailed`."""
        session = self._session(introduction)
        status = session.batch_read(
            [span.local for span in spans],
            [span.remote for span in spans],
            [span.length for span in spans],
            session.allocate_transfer_uid(),
        )
        while status.InProgress() and not self._stopping.is_set():
            time.sleep(_POLL_S)
        if not status.Succeeded():
            with self._lock:
                self._sessions.pop(introduction, None)
            raise TransferFailed(f"reading {len(spans)} pages failed: {status.Message()}")

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self._sessions.clear()
        self._engine.deregister_memory(self._memory)

    def _session(self, introduction: bytes) -> Any:
        with self._lock:
            session = self._sessions.get(introduction)
            if session is None:
                peer = msgspec.msgpack.decode(introduction, type=_Introduction)
                self._engine.register_remote_engine(self._io.EngineDesc.unpack(peer.engine))
                session = self._engine.create_session(self._memory, self._io.MemoryDesc.unpack(peer.memory))
                if session is None:
                    raise TransferFailed("MoRI makes no session with this peer")
                self._sessions[introduction] = session
            return session


def _io() -> Any:
    """A wheel that is there and cannot load ROCm raises OSError, not ImportError."""
    try:
        import mori.io as io
    except (ImportError, OSError) as error:
        raise TransportUnavailable(
            "transport.engine mori needs ROCm (libamdhip64), an RDMA device and the extra: pip install 'loadback[mori]'"
            f" in a Python that amd-mori has a wheel for, not importable: {error}"
        ) from error
    return io
