"""The transport that an agent was told to use, opened over its memory."""

from __future__ import annotations

from importlib.util import find_spec

from kvtier.copy.address import Extent
from kvtier.transport.mooncake_engine import MooncakeEngine
from kvtier.transport.mori_engine import MoriEngine
from kvtier.transport.nixl_engine import NixlEngine
from kvtier.transport.one_sided import OneSidedEngine, OneSidedPageReader, TransportUnavailable
from kvtier.transport.page_reader import PageReader, TcpPageReader
from kvtier.transport.settings import MooncakeTransport, MoriTransport, NixlTransport, TcpTransport, TransportSettings
from kvtier.wire.messages import MemoryAt

_EVERYWHERE = ("0.0.0.0", "::")  # to listen at, not to be reached at


class Transport:
    """`reader` brings pages here; `memory` is what peers are told, None where pages are sent on the links themselves."""

    def __init__(
        self,
        reader: PageReader,
        memory: MemoryAt | None = None,
        one_sided: tuple[OneSidedPageReader, OneSidedEngine] | None = None,
    ) -> None:
        self.reader = reader
        self.memory = memory
        self._one_sided = one_sided

    def stop(self) -> None:
        """Whatever is under way is to end soon."""
        if self._one_sided is not None:
            reader, _ = self._one_sided
            reader.stop()

    def close(self) -> None:
        """Waits for transfers under way. Before the memory goes."""
        if self._one_sided is not None:
            reader, engine = self._one_sided
            reader.close()
            engine.close()


def missing_extra(settings: TransportSettings) -> str:
    """The extra of this project that the engine needs and that is not installed here; "" where nothing is missing."""
    name = str(settings.__struct_config__.tag)
    if isinstance(settings, TcpTransport) or find_spec(name) is not None:  # each is called as its package is
        return ""
    return name


def open_transport(settings: TransportSettings, name: str, listen_host: str | None, memory: Extent) -> Transport:
    """`name` is this life's of this node alone. Raises `TransportUnavailable`."""
    if isinstance(settings, TcpTransport):
        return Transport(TcpPageReader(settings.call_bytes))
    engine = _engine(settings, name, listen_host, memory)
    kind = str(settings.__struct_config__.tag)
    reader = OneSidedPageReader(engine, kind, memory.address, settings.threads)
    return Transport(reader, MemoryAt(kind, engine.introduction), (reader, engine))


def _engine(
    settings: MooncakeTransport | NixlTransport | MoriTransport, name: str, listen_host: str | None, memory: Extent
) -> OneSidedEngine:
    if isinstance(settings, NixlTransport):
        return NixlEngine(name, settings.backend, *memory)
    host = settings.host or listen_host
    if not host or host in _EVERYWHERE:
        raise TransportUnavailable("set transport.host to the address at which peers reach this node")
    if isinstance(settings, MooncakeTransport):
        return MooncakeEngine(host, settings.protocol, settings.devices, *memory)
    return MoriEngine(name, host, *memory)
