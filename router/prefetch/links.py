"""What is known of the links between nodes and of the room on them: priors first, then what transfers and agents told."""

from __future__ import annotations

from math import inf

from costmodel.calibrate import LinkEstimator
from costmodel.values import Link
from kvtier.prefetch.view import LinkState, NodeState, Path

_TELLING_MS = 100.0  # a transfer over sooner says more of how it was asked for than of the link


class LinkBook:
    """`network` and `ssd` are the priors of one hop. A node without an agent is not up: nothing can be staged from or to it.

    Engines read from their own node alone, so that links between nodes carry no demand: only stages compete there.
    """

    def __init__(self, network: Link, ssd: Link) -> None:
        self._network = network
        self._ssd = ssd
        self._measured: dict[Path, LinkEstimator] = {}
        self._free_bytes: dict[str, int] = {}  # of nodes whose agent answers
        self._stage_bytes: dict[str, float] = {}
        self._harm: dict[str, float] = {}

    def state(self, path: Path) -> LinkState:
        measured = self._measured.get(path)
        if measured is not None:
            return LinkState(measured.link)
        return LinkState(self._ssd if path.source == path.target else self._network)

    def node(self, node: str) -> NodeState:
        free = self._free_bytes.get(node)
        stage_bytes = self._stage_bytes.get(node, inf)
        return NodeState(free or 0, self._harm.get(node, 0.0), up=free is not None, stage_bytes=stage_bytes)

    def moved(self, path: Path, size_bytes: int, took_ms: float) -> None:
        """A transfer has told how fast the link is."""
        if size_bytes <= 0 or took_ms < _TELLING_MS:
            return
        measured = self._measured.get(path)
        if measured is None:
            measured = self._measured[path] = LinkEstimator(self._ssd if path.source == path.target else self._network)
        measured.observe(size_bytes, took_ms)

    def harm(self, node: str, ms_per_byte: float) -> None:
        """What evicting a byte there would cost, as its workers compute."""
        self._harm[node] = ms_per_byte

    def told(self, node: str, free_bytes: int, stage_bytes: float) -> None:
        """Its agent answers, has so much room, and brings so much at most."""
        self._free_bytes[node], self._stage_bytes[node] = free_bytes, stage_bytes

    def lost(self, node: str) -> bool:
        """Its agent does not answer. Whether it did before."""
        return self._free_bytes.pop(node, None) is not None
