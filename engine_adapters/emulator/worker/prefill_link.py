"""A decode worker's way to the prefill half of a request: asks the prefill worker's bootstrap port and waits for the KV.

Real engines move KV over RDMA or TCP here; only when it arrives, or that it never will, is emulated. One connection a request,
so that a prefill worker's death is noticed as the real one's is.
"""

from __future__ import annotations

import asyncio

import msgspec

from engine_adapters.emulator.worker.job import Bootstrap
from engine_adapters.emulator.worker.rooms import RoomResult

_HEAD_BYTES = 65_536


class PrefillGone(Exception):
    """The prefill worker could not be reached (`reached` False) or died while the KV was awaited."""

    def __init__(self, address: str, *, reached: bool) -> None:
        super().__init__(address)
        self.address = address
        self.reached = reached


class PrefillLink:
    """`attempts` tries, `gap_ms` apart, to reach a prefill worker; the wait itself is bounded by the caller."""

    def __init__(self, default_port: int, attempts: int, gap_ms: float) -> None:
        self._default_port = default_port
        self._attempts = attempts
        self._gap_s = gap_ms / 1000.0

    async def await_kv(self, bootstrap: Bootstrap, resident_tokens: int) -> RoomResult:
        """Raises PrefillGone."""
        host = (bootstrap.host or "").strip("[]")
        port = bootstrap.port or self._default_port
        reader, writer = await self._connect(host, port)
        try:
            path = f"/emulator/room/{bootstrap.room}?resident_tokens={resident_tokens}"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n".encode())
            await writer.drain()
            reply = await reader.read()
            _, separator, body = reply.partition(b"\r\n\r\n")
            if not separator:
                raise PrefillGone(f"{host}:{port}", reached=True)
            return msgspec.json.decode(body, type=RoomResult)
        except (OSError, msgspec.DecodeError) as error:
            raise PrefillGone(f"{host}:{port}", reached=True) from error
        finally:
            writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._gap_s)
            try:
                return await asyncio.open_connection(host, port, limit=_HEAD_BYTES)
            except OSError:
                continue
        raise PrefillGone(f"{host}:{port}", reached=False)
