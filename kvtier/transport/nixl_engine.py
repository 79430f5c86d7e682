"""NVIDIA's NIXL (https://github.com/ai-dynamo/nixl) as a one-sided engine, with one of its backends: UCX unless told otherwise.

UCX takes the best way that both nodes have; UCX_TLS=tcp in the agent's environment leaves it TCP alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from kvtier.transport.one_sided import Span, TransferFailed, TransportUnavailable

_POLL_S = 0.0005
_SLOW_POLL_S = 0.01
_FAST_POLLS = 200


class _Introduction(msgspec.Struct, frozen=True, array_like=True):
    metadata: bytes
    base: int


class NixlEngine:
    """`name` must differ from that of every peer and of every earlier life of this node."""

    def __init__(self, name: str, backend: str, address: int, length: int) -> None:
        """Raises `TransportUnavailable`."""
        self._api = _api()
        config = self._api.nixl_agent_config(backends=[backend], sync_mode=self._api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
        self._agent = self._api.nixl_agent(name, config)
        if backend not in self._agent.backends:
            known = ", ".join(self._agent.get_plugin_list())
            raise TransportUnavailable(f"transport.backend {backend} is none of NIXL's backends here: {known}")
        self._registered = self._agent.register_memory([(address, length, 0, "")], mem_type="DRAM", backends=[backend])
        self._base = address
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._peers: dict[bytes, Any] = {}
        self.introduction = msgspec.msgpack.encode(_Introduction(self._agent.get_agent_metadata(), address))

    def read(self, introduction: bytes, spans: Sequence[Span]) -> None:
        """Raises `TransferFailed`."""
        peer = msgspec.msgpack.decode(introduction, type=_Introduction)
        try:
            self._read(self._named(peer.metadata), peer.base, spans)
        except self._api.nixlBind.nixlBackendError as error:
            self._forget(peer.metadata)
            raise TransferFailed(f"reading {len(spans)} pages failed: {error}") from error
        except TransferFailed:
            self._forget(peer.metadata)
            raise

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        for metadata in list(self._peers):
            self._forget(metadata)
        self._agent.deregister_memory(self._registered)

    def _read(self, peer: Any, base: int, spans: Sequence[Span]) -> None:
        ours = [(self._base + span.local, span.length, 0) for span in spans]
        theirs = [(base + span.remote, span.length, 0) for span in spans]
        handle = self._agent.initialize_xfer(
            "READ",
            self._agent.get_xfer_descs(ours, mem_type="DRAM"),
            self._agent.get_xfer_descs(theirs, mem_type="DRAM"),
            peer,
        )
        try:
            state = self._agent.transfer(handle)
            polls = 0
            while state == "PROC" and not self._stopping.is_set():
                time.sleep(_POLL_S if polls < _FAST_POLLS else _SLOW_POLL_S)
                polls += 1
                state = self._agent.check_xfer_state(handle)
        finally:
            self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise TransferFailed(f"reading {len(spans)} pages ended in state {state}")

    def _named(self, metadata: bytes) -> Any:
        with self._lock:
            if metadata not in self._peers:
                self._peers[metadata] = self._agent.add_remote_agent(metadata)
            return self._peers[metadata]

    def _forget(self, metadata: bytes) -> None:
        with self._lock:
            peer = self._peers.pop(metadata, None)
            if peer is not None:
                self._agent.remove_remote_agent(peer)


def _api() -> Any:
    try:
        import nixl._api as api  # its published module, in spite of the name
    except ImportError as error:
        raise TransportUnavailable(
            f"transport.engine nixl needs the extra: pip install 'loadback[nixl]', not importable: {error}"
        ) from error
    logger = logging.getLogger("nixl")  # writes to standard output, where an agent says that it is ready and no more
    logger.handlers.clear()
    logger.propagate = True
    return api
