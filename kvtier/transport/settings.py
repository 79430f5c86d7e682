"""What an operator says about how page bytes cross between nodes. All nodes of a cluster must say the same."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvtier.settings.ranges import Size, Threads


class _Transport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="engine"):
    pass


class TcpTransport(_Transport, frozen=True, kw_only=True, tag="tcp"):
    """On the agents' own connections, into registered pages."""

    call_bytes: Size = 16 << 20  # neighbouring pages that are asked for at once; other answers wait behind two such calls


class _OneSided(_Transport, frozen=True, kw_only=True):
    threads: Threads = 8  # transfers under way at once


class MooncakeTransport(_OneSided, frozen=True, kw_only=True, tag="mooncake"):
    """Mooncake's transfer engine; the extra `mooncake`."""

    host: str = ""  # where peers reach this node's engine; "" = listen.host
    protocol: Literal["tcp", "rdma"] = "tcp"
    devices: str = ""  # of RDMA, comma-separated; "" = all


class NixlTransport(_OneSided, frozen=True, kw_only=True, tag="nixl"):
    """NIXL; the extra `nixl`. UCX chooses its ways by UCX_TLS in the agent's environment."""

    backend: str = "UCX"


class MoriTransport(_OneSided, frozen=True, kw_only=True, tag="mori"):
    """MoRI's IO engine over RDMA; the extra `mori`, ROCm and an RDMA device."""

    host: str = ""  # as above


TransportSettings = TcpTransport | MooncakeTransport | NixlTransport | MoriTransport
