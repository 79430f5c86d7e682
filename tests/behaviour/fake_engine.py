"""A small SGLang-like server that a test scripts: it records every byte it gets and fails as it is told.

Only what the gateway's behaviour depends on is there: discovery, loads, aborts by id, and replies to chat, completions,
responses and messages, streamed or whole.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from waiting import until

MODEL = "fake-model"
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@dataclass(frozen=True, slots=True)
class Script:
    """What becomes of one request. Counts are of events of the stream."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    error_body: bytes = b'{"error":{"message":"scripted","type":"BadRequestError","param":null,"code":null}}'
    hang: bool = False  # never answer
    drop: bool = False  # close without a byte
    events: int = 4
    event_bytes: int = 0  # of padding in each event
    stay_after: int | None = None  # send no more until the test calls `go`; a whole reply waits for it too
    cut_after: int | None = None  # close the connection
    error_after: int | None = None  # an error event, then [DONE], as SGLang does
    error_code: int = 500  # in that event
    end_marker: bool = True
    body: bytes | None = None  # of a whole reply, instead of a good one
    comments: bool = False  # a stream of nothing but keep-alives


class Rooms:
    """Where both legs of a turn meet, as SGLang's do: neither is answered before its other half has come. Without that a test
    would count what one engine has got while the bytes are still on their way to it."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Event] = {}

    async def meet(self, room: int | None) -> None:
        """At once where there is no other half."""
        if room is None:
            return
        other = self._waiting.pop(room, None)
        if other is not None:
            other.set()
            return
        self._waiting[room] = asyncio.Event()
        await self._waiting[room].wait()


@dataclass(slots=True)
class Received:
    head: bytes
    body: bytes
    aborted: bool = False  # the caller left before the reply was out
    answered: bool = False

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def header_lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")[1:-2]

    def header(self, name: str) -> str | None:
        wanted = name.encode()
        return next(
            (value.strip().decode() for key, _, value in (x.partition(b":") for x in self.header_lines) if key == wanted), None
        )


@dataclass(slots=True, eq=False)
class FakeEngine:
    """`faults` come first, then `scripts`, one a request, then `script`. `calls` are the generating requests, in order."""

    role: str = "null"
    script: Script = field(default_factory=Script)
    scripts: list[Script] = field(default_factory=list)
    faults: dict[bytes, Script] = field(default_factory=dict)  # of requests whose body holds the key
    calls: list[Received] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    other: list[Received] = field(default_factory=list)
    rooms: Rooms = field(default_factory=Rooms)
    sent_bytes: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def active(self) -> list[Received]:
        """What still waits for its reply here."""
        return [call for call in self.calls if not call.answered and not call.aborted]

    @property
    def aborted(self) -> list[Received]:
        return [call for call in self.calls if call.aborted]

    def go(self) -> None:
        """Let the streams that stay go on."""
        self._go.set()

    async def called(self, count: int = 1) -> Received:
        """Wait for that many calls; the last of them."""
        await until(lambda: len(self.calls) >= count, f"call {count} of engine {self.port}")
        return self.calls[count - 1]

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_content_length(head))
                if not await self._answer(Received(head, body), reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the gateway left, or the test is over
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, call: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False: close the connection."""
        path = call.target.partition("?")[0]
        if path not in GENERATING:
            self.other.append(call)
            writer.write(_whole(*self._control(path, call)))
            return True
        self.calls.append(call)
        reply = asyncio.ensure_future(self._generate(path, call, writer))
        leaving = asyncio.ensure_future(_left(reader))
        try:
            await asyncio.wait((reply, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                call.aborted = True
                return False
            return reply.result()
        except ConnectionError:
            call.aborted = True
            return False
        finally:
            reply.cancel()
            leaving.cancel()
            await asyncio.gather(reply, leaving, return_exceptions=True)

    def _control(self, path: str, call: Received) -> tuple[int, bytes]:
        if path == "/server_info":
            info = {
                "version": "0.5.23",
                "page_size": 64,
                "disaggregation_mode": self.role,
                "disaggregation_bootstrap_port": 8998,
            }
            return 200, json.dumps(info).encode()
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 32768}]}).encode()
        if path == "/v1/loads":
            return 200, json.dumps({"loads": [{"dp_rank": 0, "num_running_reqs": len(self.active)}]}).encode()
        if path == "/abort_request":
            self.aborts.append(call.json["rid"])
            return 200, b"{}"
        return 404, b'{"detail":"Not Found"}'

    async def _generate(self, path: str, call: Received, writer: asyncio.StreamWriter) -> bool:
        script = next((fault for key, fault in self.faults.items() if key in call.body), None)
        if script is None:
            script = self.scripts.pop(0) if self.scripts else self.script
        body: dict[str, Any] = {}
        try:
            body = call.json
        except ValueError:
            script = Script(status=400, error_body=b'{"error":{"message":"not JSON"}}')
        await self.rooms.meet(body.get("bootstrap_room"))
        if script.hang:
            await asyncio.Event().wait()
        if script.drop:
            call.answered = True
            return False
        if script.status != 200:
            writer.write(_whole(script.status, script.error_body, script.headers))
            keep = True
        elif body.get("stream"):
            keep = await self._stream(path, body, script, writer)
        else:
            if script.stay_after is not None:
                await self._go.wait()
            writer.write(_whole(200, whole_reply(path, body) if script.body is None else script.body, script.headers))
            keep = True
        await writer.drain()
        call.answered = True
        return keep

    async def _stream(self, path: str, body: dict[str, Any], script: Script, writer: asyncio.StreamWriter) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"x-engine: fake\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        while script.comments:
            writer.write(b"6\r\n: hm\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)  # another process's pace
        for number, event in enumerate(events_of(path, body, script)):
            if number == script.stay_after:
                await self._go.wait()
            if number == script.cut_after:
                await writer.drain()
                return False
            if number == script.error_after:
                event = b'data: {"error":{"message":"scripted","type":"InternalServerError","code":%d}}\n\n' % script.error_code
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.sent_bytes += len(event)
            await writer.drain()
            if number == script.error_after:
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n")
                break
        writer.write(b"0\r\n\r\n")
        return True


def events_of(path: str, body: dict[str, Any], script: Script) -> list[bytes]:
    """A whole stream of that path's protocol, the usage chunk where it was asked for."""
    padding = "x" * script.event_bytes
    if path == "/v1/messages":
        return _messages_events(script, padding)
    if path == "/v1/responses":
        return _responses_events(script, padding)
    events = [_chunk(path, {"content": f"t{n} {padding}"}, None) for n in range(script.events - 1)]
    events.append(_chunk(path, {"content": ""}, "stop"))
    if (body.get("stream_options") or {}).get("include_usage"):
        chunk = {"id": "c1", "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": usage()}
        events.append(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")
    if script.end_marker:
        events.append(b"data: [DONE]\n\n")
    return events


def whole_reply(path: str, body: dict[str, Any]) -> bytes:
    if path == "/v1/messages":
        parts = [{"type": "text", "text": "hello"}]
        usage_of = {"input_tokens": 7, "output_tokens": 3}
        return json.dumps(
            {"type": "message", "role": "assistant", "content": parts, "stop_reason": "end_turn", "usage": usage_of}
        ).encode()
    if path == "/v1/responses":
        return json.dumps(
            {"id": "resp_1", "object": "response", "status": "completed", "output": [], "usage": {"input_tokens": 7}}
        ).encode()
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "text": "hello", "finish_reason": "stop"}
    count = body["n"] if isinstance(body.get("n"), int) else 1
    choices = [choice | {"index": index} for index in range(count)]
    reply = {"id": "c1", "object": "chat.completion", "model": MODEL, "choices": choices, "usage": usage()}
    if body.get("return_cached_tokens_details"):
        reply["sglext"] = {"cached_tokens_details": {"device": 0, "host": 0}}
    return json.dumps(reply, separators=(",", ":")).encode()


def usage() -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def _chunk(path: str, delta: dict[str, str], finish: str | None) -> bytes:
    said = {"text": delta["content"]} if path == "/v1/completions" else {"delta": delta}
    chunk = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "model": MODEL,
        "choices": [{"index": 0, **said, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _named(name: str, **members: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()


def _messages_events(script: Script, padding: str) -> list[bytes]:
    start = _named("message_start", message={"role": "assistant", "usage": {"input_tokens": 7}})
    deltas = [
        _named("content_block_delta", index=0, delta={"type": "text_delta", "text": f"t{n} {padding}"})
        for n in range(script.events)
    ]
    end = [_named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}), _named("message_stop")]
    return [start, *deltas, *end]


def _responses_events(script: Script, padding: str) -> list[bytes]:
    created = _named("response.created", response={"id": "resp_1", "status": "in_progress"})
    deltas = [_named("response.output_text.delta", delta=f"t{n} {padding}") for n in range(script.events)]
    done = {"id": "resp_1", "status": "completed", "usage": {"input_tokens": 7, "output_tokens": 3}}
    return [created, *deltas, _named("response.completed", response=done)]


def _whole(status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _left(reader: asyncio.StreamReader) -> None:
    """Returns when the caller closes or resets; the gateway never sends a request before it has the last reply."""
    with suppress(ConnectionError):
        await reader.read(1)
