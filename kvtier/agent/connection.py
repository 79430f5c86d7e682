"""One client's connection, from its welcome to its end, which gives back all it held."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import msgspec

from kvtier.agent.desk import Desk
from kvtier.agent.owner import Owner
from kvtier.wire.frames import FrameError
from kvtier.wire.messages import MessageError
from kvtier.wire.stream import StreamClosed

log = logging.getLogger(__name__)


class ConnectionCounters(msgspec.Struct):
    """Of all connections of an agent, past and present."""

    connections: int = 0
    connections_refused: int = 0
    requests: int = 0
    sent_bytes: int = 0  # of pages
    broken_frames: int = 0
    crashes: int = 0  # faults of our own; should stay 0


class Connection(ABC):
    """`run` is the connection's task."""

    def __init__(self, desk: Desk, counters: ConnectionCounters) -> None:
        self._desk = desk
        self._counters = counters

    @abstractmethod
    def abort(self) -> None:
        """End it from here."""

    @abstractmethod
    async def _serve(self, owner: Owner) -> None:
        """Answer requests. Raises `StreamClosed`, `FrameError` and `MessageError`."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the socket."""

    async def run(self) -> None:
        """Until the client goes, breaks the protocol, or `abort`."""
        owner = self._desk.enter()
        self._counters.connections += 1
        try:
            await self._serve(owner)
        except StreamClosed as error:
            log.debug("connection %d: %s", owner.number, error)
        except (FrameError, MessageError) as error:
            self._counters.broken_frames += 1
            log.warning("connection %d broke the protocol: %s", owner.number, error)
        except Exception:
            self._counters.crashes += 1
            log.exception("connection %d failed", owner.number)
        finally:
            self._desk.leave(owner)
            self._close()
