"""Mooncake's transfer engine (https://github.com/kvcache-ai/Mooncake) as a one-sided engine: TCP, or RDMA where there is some.

Peers find each other by address alone (its P2P handshake); no metadata server is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvtier.transport.one_sided import Span, TransferFailed, TransportUnavailable

_HANDSHAKE = "P2PHANDSHAKE"


class _Introduction(msgspec.Struct, frozen=True, array_like=True):
    session: str  # host and port of the engine
    base: int


class MooncakeEngine:
    def __init__(self, host: str, protocol: str, devices: str, address: int, length: int) -> None:
        """Raises `TransportUnavailable`."""
        self._engine = _transfer_engine()
        if self._engine.initialize(host, _HANDSHAKE, protocol, devices):
            raise TransportUnavailable(
                f"transport.engine mooncake cannot start on {host} with protocol {protocol}: see its log on standard error;"
                " without RDMA devices set transport.protocol to tcp"
            )
        if self._engine.register_memory(address, length):
            raise TransportUnavailable(f"mooncake cannot register {length >> 20} MiB of memory: see its log on standard error")
        self._base = address
        session = f"{host}:{self._engine.get_rpc_port()}"
        self.introduction = msgspec.msgpack.encode(_Introduction(session, address))

    def read(self, introduction: bytes, spans: Sequence[Span]) -> None:
        """Mooncake itself gives up a peer that moves nothing for 30 s. Raises `TransferFailed`."""
        peer = msgspec.msgpack.decode(introduction, type=_Introduction)
        failed = self._engine.batch_transfer_sync_read(
            peer.session,
            [self._base + span.local for span in spans],
            [peer.base + span.remote for span in spans],
            [span.length for span in spans],
        )
        if failed:
            raise TransferFailed(f"reading {len(spans)} pages from {peer.session} failed")

    def stop(self) -> None:
        """It cannot be told; its own 30 s bound it."""

    def close(self) -> None:
        self._engine.unregister_memory(self._base)


def _transfer_engine() -> Any:
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise TransportUnavailable(
            f"transport.engine mooncake needs the extra: pip install 'loadback[mooncake]', not importable: {error}"
        ) from error
    return TransferEngine()
