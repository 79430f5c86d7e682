"""What an operator says about one agent, in YAML. Unknown keys and wrong values are refused, all at once.

Sizes may have units ("8 GiB"). Defaults stand in the settings that each part declares for itself; this page only gathers them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from kvtier.agent.listeners import ServeSettings
from kvtier.agent.sharer import ShareSettings
from kvtier.agent.stager import StageSettings
from kvtier.pool.backing import HUGE_BYTES, Backing
from kvtier.settings.faults import faults_in
from kvtier.settings.ranges import ListenPort, Ms, Port, Text, Threads, TickMs
from kvtier.settings.yaml_file import YamlFault, read_yaml
from kvtier.store.settings import DramSettings, SsdSettings
from kvtier.transport.links import LinkSettings
from kvtier.transport.settings import TcpTransport, TransportSettings

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]i?B|B)?")
_UNITS = {"B": 1, **{f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMGT", 1)}}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}


class ConfigError(Exception):
    """The message names the file and the key, in one line for each fault that was looked for."""


class DramConfig(DramSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """L3, and what it is made of. `bytes` is rounded down to whole huge pages."""

    backing: Backing = Backing.AUTO
    prefault: bool = True

    @property
    def whole_bytes(self) -> int:
        return self.bytes // HUGE_BYTES * HUGE_BYTES


class SsdConfig(SsdSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """L4, and where it lies."""

    directory: Text
    io_threads: Threads = 4


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where other agents, or gateways, reach this one. There is no authentication: a network that only nodes share."""

    host: Text = "127.0.0.1"
    port: ListenPort = 0  # 0 = the system chooses, and the agent says which


class PeerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another node's agent, which may be given pages."""

    node: Text
    host: Text
    port: Port


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent."""

    node: Text  # its name, the same after a restart, unlike any other's
    socket: Text  # path of the Unix socket for engines on this host
    dram: DramConfig
    ssd: SsdConfig | None = None
    listen: ListenConfig | None = None
    control: ListenConfig | None = None  # for gateways, by gRPC
    serve: ServeSettings = ServeSettings()
    links: LinkSettings = LinkSettings()
    transport: TransportSettings = TcpTransport()  # of pages between nodes
    stages: StageSettings = StageSettings()
    peers: tuple[PeerConfig, ...] = ()
    share: ShareSettings = ShareSettings()
    tick_ms: TickMs = 100
    drain_ms: Ms = 5000  # for pages on their way to SSD at shutdown

    def __post_init__(self) -> None:
        if self.dram.whole_bytes < max(HUGE_BYTES, self.dram.slab_bytes):
            raise ValueError(
                f"dram.bytes, in whole huge pages, must be at least {HUGE_BYTES} (one huge page) and dram.slab_bytes "
                f"({self.dram.slab_bytes}), not {self.dram.whole_bytes}"
            )
        nodes = [peer.node for peer in self.peers]
        if len(nodes) != len(set(nodes)):
            raise ValueError("two peers have the same node: only one of them would be given pages")
        if not self.share.idle and (self.listen is None or not self.listen.port or not self.peers):
            raise ValueError("share needs peers, and listen with a host and port at which they reach this node")
        if self.ssd is not None and self.ssd.segment_bytes < 2 * self.dram.slab_bytes:
            raise ValueError(
                f"ssd.segment_bytes must be at least twice dram.slab_bytes, {2 * self.dram.slab_bytes} bytes, "
                f"not {self.ssd.segment_bytes}: a page and its header must fit"
            )


def load_config(path: Path) -> AgentConfig:
    """Raises `ConfigError`."""
    try:
        return parse_config(read_yaml(path))
    except (YamlFault, ConfigError) as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def parse_config(raw: Any) -> AgentConfig:
    """From plain data. Raises `ConfigError`."""
    if not isinstance(raw, dict):
        raise ConfigError("expected a mapping at the top, such as `node: NAME`")
    sized = _with_sizes(raw, "")
    if faults := faults_in(sized, AgentConfig):
        raise ConfigError("\n".join(faults))
    return msgspec.convert(sized, AgentConfig)


def _with_sizes(raw: Any, path: str) -> Any:
    if isinstance(raw, dict):
        return {key: _with_sizes(value, f"{path}.{key}".lstrip(".")) for key, value in raw.items()}
    if isinstance(raw, str) and path.rpartition(".")[2].endswith("bytes"):
        return _size(raw)
    return raw


def _size(text: str) -> int | str:
    """The text itself where it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return int(float(match["number"]) * _UNITS[match["unit"] or "B"]) if match else text
