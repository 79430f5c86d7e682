"""A prefill worker's bootstrap server: SGLang's `/route`, `/query_dp_ranks`, `/health`, and the emulated KV transfer.

`GET /emulator/room/{room}` stands in for the transfer itself; it answers once the KV would have arrived.
"""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

import msgspec

from engine_adapters.emulator.wire.errors import BadRequest, parse_object
from engine_adapters.emulator.wire.http import Exchange, Receive, Scope, Send
from engine_adapters.emulator.worker.worker import Worker

_ROUTE_KEYS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
_ROOM = "/emulator/room/"


class BootstrapApp:
    """One ASGI application on the worker's bootstrap port."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ranks: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, varies=False)
        try:
            await self._route(exchange)
        except BadRequest as error:
            await exchange.text(400, error.message)
        except ConnectionError:
            return

    async def _route(self, exchange: Exchange) -> None:
        if exchange.path == "/health":
            await exchange.text(200, "OK")
        elif exchange.path == "/route":
            await self._server_info(exchange)
        elif exchange.path == "/register_dp_rank":
            request = parse_object(await exchange.body())
            self._ranks[str(request.get("bootstrap_room"))] = int(request.get("dp_rank", 0))
            await exchange.text(200, "OK")
        elif exchange.path == "/query_dp_ranks":
            rooms = [str(room) for room in parse_object(await exchange.body()).get("bootstrap_rooms", [])]
            await _json(exchange, {room: self._ranks[room] for room in rooms if room in self._ranks})
        elif exchange.path.startswith(_ROOM):
            await self._room(exchange)
        else:
            await exchange.text(404, "404: Not Found")

    async def _server_info(self, exchange: Exchange) -> None:
        if exchange.scope["method"] == "PUT":
            await exchange.text(200, "OK")
            return
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        asked = [query.get(key, [""])[-1] for key in _ROUTE_KEYS]
        if not all(asked):
            await exchange.text(400, "Missing inputs for bootstrap server.")
        elif all(value == "-1" for value in asked):
            await _json(exchange, self._prefill_server_info())
        elif all(value == "0" for value in asked):
            await _json(exchange, {"rank_ip": self._worker.options.host, "rank_port": self._worker.options.bootstrap_port})
        else:
            ranks = " ".join(f"{key.split('_')[1]}_rank={value}" for key, value in zip(_ROUTE_KEYS, asked, strict=True))
            await exchange.text(404, f"Bootstrap info not found for {ranks}")

    def _prefill_server_info(self) -> dict[str, object]:
        return {
            "attn_tp_size": 1,
            "attn_cp_size": 1,
            "dp_size": 1,
            "pp_size": 1,
            "page_size": self._worker.params.page_tokens,
            "kv_cache_dtype": "auto",
            "follow_bootstrap_room": True,
            "enable_dsa_cache_layer_split": False,
            "decode_allocation_policy": "early",
            "enable_kv_cache_sharding": False,
            "prefill_http_port": self._worker.options.port,
            "target_tp_rank": None,
            "target_tp_ranks": None,
            "target_cp_ranks": None,
            "target_pp_ranks": None,
            "required_dst_info_num": None,
            "required_prefill_response_num": None,
        }

    async def _room(self, exchange: Exchange) -> None:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        try:
            room = int(exchange.path.removeprefix(_ROOM))
            resident_tokens = int(query.get("resident_tokens", ["0"])[-1])
        except ValueError as error:
            raise BadRequest(f"room and resident_tokens must be numbers: {error}") from error
        wait = asyncio.ensure_future(self._worker.rooms.wait(room, resident_tokens))
        gone = asyncio.ensure_future(exchange.gone())
        try:
            await asyncio.wait({wait, gone}, return_when=asyncio.FIRST_COMPLETED)
            if wait.done():
                await _json(exchange, msgspec.to_builtins(wait.result()))
        finally:
            for task in (wait, gone):
                task.cancel()
            await asyncio.gather(wait, gone, return_exceptions=True)


async def _json(exchange: Exchange, value: object) -> None:
    await exchange.reply(200, msgspec.json.encode(value), b"application/json; charset=utf-8")
