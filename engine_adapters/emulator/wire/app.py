"""The emulated worker's routes: SGLang's, and `/_emulator/…` for faults and statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from engine_adapters.emulator.model.params import EngineRole
from engine_adapters.emulator.wire import info
from engine_adapters.emulator.wire.auth import allowed
from engine_adapters.emulator.wire.call import Dialect
from engine_adapters.emulator.wire.chat import ChatDialect
from engine_adapters.emulator.wire.completions import CompletionDialect
from engine_adapters.emulator.wire.errors import BadRequest, invalid, openai_error, parse_object
from engine_adapters.emulator.wire.generate import GenerateDialect
from engine_adapters.emulator.wire.http import BodyTooLarge, Exchange, Receive, Scope, Send
from engine_adapters.emulator.wire.inference import serve_inference
from engine_adapters.emulator.wire.messages import MessagesDialect
from engine_adapters.emulator.wire.metrics import exposition
from engine_adapters.emulator.wire.responses import ResponsesDialect
from engine_adapters.emulator.wire.sampling import Sampling
from engine_adapters.emulator.wire.tokenize import tokenize
from engine_adapters.emulator.worker.faults import Fault
from engine_adapters.emulator.worker.options import ENGINE_NAME
from engine_adapters.emulator.worker.worker import Worker

_FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)

Handler = Callable[[Exchange], Awaitable[None]]


class EmulatorApp:
    """One ASGI application for one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        sampling = Sampling(worker.params, worker.options.style, worker.tokenizer)
        chat = ChatDialect(sampling, worker.template, worker.tokenizer, worker.options.cache_report)
        messages = MessagesDialect(sampling, worker.template, chat)
        name, disaggregated = worker.options.served_model_name, worker.params.role is not EngineRole.UNIFIED
        self._dialects: dict[str, Dialect] = {
            "/v1/chat/completions": chat,
            "/v1/completions": CompletionDialect(sampling, worker.tokenizer, worker.options.cache_report),
            "/generate": GenerateDialect(sampling, worker.tokenizer, worker.params.role is not EngineRole.DECODE),
            "/v1/responses": ResponsesDialect(sampling, worker.template, chat, name, disaggregated),
            "/v1/messages": messages,
        }
        self._chat = chat
        self._messages = messages
        self._handlers: dict[str, Handler] = {
            "/health": self._health,
            "/health_generate": self._health,
            "/ready": self._health,
            "/ping": self._health,
            "/v1/models": self._models,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": self._loads,
            "/metrics": self._metrics,
            "/flush_cache": self._flush_cache,
            "/v1/messages/count_tokens": self._count_tokens,
            "/tokenize": self._tokenize,
            "/v1/tokenize": self._tokenize,
            "/abort_request": self._abort_request,
            "/_emulator/fault": self._fault,
            "/_emulator/reset": self._reset,
            "/_emulator/stats": self._stats,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the emulator serves HTTP only, not {scope['type']}")
        exchange = Exchange(scope, receive, send)
        try:
            keys = self.worker.options.api_key, self.worker.options.admin_key
            if allowed(exchange.path, exchange.header("authorization"), *keys):
                await self._route(exchange)
            else:
                await exchange.json(401, {"error": "Unauthorized"})
        except BadRequest as error:
            await exchange.json(error.status, openai_error(error.status, error.message, error.kind))
        except BodyTooLarge:
            await exchange.json(413, openai_error(413, "body too large", "413"))
        except ConnectionError:
            return

    async def _route(self, exchange: Exchange) -> None:
        method, path = exchange.scope["method"], exchange.path
        self.worker.journal.routed(path)
        dialect = self._dialects.get(path)
        if dialect is not None and method == "POST":
            await serve_inference(self.worker, dialect, exchange)
        elif path in self._handlers:
            await self._handlers[path](exchange)
        elif path.startswith("/v1/models/"):
            await self._model(exchange, path.removeprefix("/v1/models/"))
        elif dialect is not None:
            await exchange.json(405, {"detail": "Method Not Allowed"}, ((b"allow", b"POST"),))
        else:
            await exchange.json(404, {"detail": "Not Found"})

    async def _health(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"", None)

    async def _models(self, exchange: Exchange) -> None:
        await exchange.json(200, info.models(self.worker))

    async def _model(self, exchange: Exchange, name: str) -> None:
        if name == self.worker.options.served_model_name:
            await exchange.json(200, info.model_card(self.worker))
            return
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        await exchange.json(404, {"error": error})

    async def _model_info(self, exchange: Exchange) -> None:
        await exchange.json(200, info.model_info(self.worker))

    async def _server_info(self, exchange: Exchange) -> None:
        await exchange.json(200, info.server_info(self.worker))

    async def _loads(self, exchange: Exchange) -> None:
        query = _query(exchange)
        include = {part.strip() for part in query["include"].split(",")} if "include" in query else None
        if include is not None and not include <= info.SECTIONS:
            await exchange.text(500, "Internal Server Error")  # as the engine: its own check comes too late
        elif query.get("format") == "prometheus":
            text = info.loads_exposition(self.worker, include)
            await exchange.reply(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            dp_rank = _number(query, "dp_rank")
            await exchange.json(200, info.loads(self.worker, include, None if dp_rank is None else int(dp_rank)))

    async def _metrics(self, exchange: Exchange) -> None:
        await exchange.reply(200, exposition(self.worker).encode(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _count_tokens(self, exchange: Exchange) -> None:
        try:
            await exchange.json(200, self._messages.count_tokens(await exchange.body()))
        except BadRequest as error:
            await exchange.json(*self._messages.refusal(error))

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.json(200, tokenize(body, self._chat, self.worker.tokenizer, self.worker.params.context_tokens))

    async def _flush_cache(self, exchange: Exchange) -> None:
        if await self.worker.flush(_number(_query(exchange), "timeout") or 0.0):
            await exchange.reply(200, _FLUSHED, None)
        else:
            await exchange.reply(400, b"Flush cache failed.\n", None)

    async def _abort_request(self, exchange: Exchange) -> None:
        request = parse_object(await exchange.body())
        rid, everything = str(request.get("rid") or ""), bool(request.get("abort_all"))
        self.worker.journal.abort_calls.append(rid)
        if rid or everything:
            self.worker.abort(rid, everything=everything)
        await exchange.reply(200, b"", None)

    async def _fault(self, exchange: Exchange) -> None:
        try:
            fault = msgspec.json.decode(await exchange.body(), type=Fault)
            self.worker.faults.add(fault)
        except (msgspec.DecodeError, ValueError) as error:
            raise BadRequest(f"fault: {error}") from error
        await exchange.json(200, {"engine": ENGINE_NAME, "fault": msgspec.to_builtins(fault)})

    async def _reset(self, exchange: Exchange) -> None:
        """Forget faults and statistics, abort everything, empty the cache."""
        self.worker.faults.clear()
        self.worker.abort("", everything=True)
        flushed = await self.worker.flush(1.0)
        self.worker.journal.clear()
        await exchange.json(200, {"engine": ENGINE_NAME, "flushed": flushed})

    async def _stats(self, exchange: Exchange) -> None:
        report: dict[str, Any] = {"engine": ENGINE_NAME, **self.worker.journal.report()}
        report["faults_injected"] = self.worker.faults.injected
        report["engine_requests"] = len(self.worker.driver.rids)
        pool = self.worker.pool
        report["pool"] = None if pool is None else {**msgspec.to_builtins(pool.counters), "page_bytes": pool.page_bytes}
        await exchange.json(200, report)


def _number(query: dict[str, str], key: str) -> float | None:
    if key not in query:
        return None
    try:
        return float(query[key])
    except ValueError as error:
        detail = "Input should be a valid number, unable to parse string as a number"
        raise invalid("float_parsing", ("query", key), detail, query[key]) from error


def _query(exchange: Exchange) -> dict[str, str]:
    parsed = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    return {key: values[-1] for key, values in parsed.items()}
