from __future__ import annotations

import json

import msgspec
import pytest

from router.dialects import CHAT, COMPLETIONS, DIALECTS, MESSAGES, RESPONSES, Dialect, EventKind
from router.dialects.dialect import event_data, event_name, split_blocks
from router.errors import (
    BadRequest,
    BodyTooLarge,
    ClientFault,
    EncodedBody,
    EngineDied,
    GatewayError,
    HeadTooLarge,
    NoWorker,
    QueueFull,
    Unauthorized,
    UnknownModel,
)

COMMENT, PREAMBLE, OUTPUT, TRAILER, ERROR, DONE = EventKind

# Events as SGLang 0.5.23 and vLLM 0.32.0 send them, shortened.
CHAT_EVENTS = [
    (b": keep-alive\n\n", COMMENT),
    (b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n', OUTPUT),
    (
        b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"an \\"error\\": x"}}],"usage":null}\n\n',
        OUTPUT,
    ),
    (b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n', OUTPUT),
    (b'data: {"id":"a","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n', TRAILER),
    (b'data: {"id":"a","choices":[],"sglext":{"cached_tokens_details":{}}}\n\n', TRAILER),
    (
        b'data: {"error": {"object": "error", "message": "Decode failed", "type": "BadRequestError", "code": 500}}\n\n',
        ERROR,
    ),
    (b'data: {"object":"error","message":"flat","type":"500","code":500}\n\n', ERROR),
    (b'data: {"error":null,"choices":[{"index":0,"text":"x"}]}\n\n', OUTPUT),
    (b"data: [DONE]\n\n", DONE),
    (b"data: not json\n\n", ERROR),
]
RESPONSES_EVENTS = [
    (
        b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress","usage":null}}\n\n',
        PREAMBLE,
    ),
    (b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{"status":"in_progress"}}\n\n', PREAMBLE),
    (b'event: response.output_item.added\ndata: {"type":"response.output_item.added","output_index":0}\n\n', OUTPUT),
    (b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n', OUTPUT),
    (b'data: {"type":"response.output_text.delta","delta":"x"}\n\n', OUTPUT),
    (b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n', DONE),
    (b'data: {"type":"response.incomplete","response":{"status":"incomplete"}}\n\n', DONE),
    (
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"server_error"}}}\n\n',
        ERROR,
    ),
    (b'event: error\ndata: {"type":"error","message":"x"}\n\n', ERROR),
    (b'data: {"error":{"message":"x","code":500}}\n\n', ERROR),
    (b"data: [DONE]\n\n", TRAILER),
    (b":\n\n", COMMENT),
]
MESSAGES_EVENTS = [
    (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}\n\n',
        PREAMBLE,
    ),
    (b'event: ping\ndata: {"type": "ping"}\n\n', PREAMBLE),
    (b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text"}}\n\n', OUTPUT),
    (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"error"}}\n\n',
        OUTPUT,
    ),
    (
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end"},"usage":{"output_tokens":5}}\n\n',
        OUTPUT,
    ),
    (b'event: message_stop\ndata: {"type":"message_stop"}\n\n', DONE),
    (b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n', ERROR),
    (b'data: {"type":"message_stop"}\n\n', DONE),
    (b": x\n\n", COMMENT),
]
EVENTS = (
    [(CHAT, *case) for case in CHAT_EVENTS]
    + [(COMPLETIONS, *case) for case in CHAT_EVENTS]
    + [(RESPONSES, *case) for case in RESPONSES_EVENTS]
    + [(MESSAGES, *case) for case in MESSAGES_EVENTS]
)
ALL = list(DIALECTS.values())


@pytest.mark.parametrize(("dialect", "event", "kind"), EVENTS)
def test_events_are_told_apart(dialect: Dialect, event: bytes, kind: EventKind) -> None:
    for written in (event, event.rstrip(b"\n"), event.replace(b"\n", b"\r\n")):
        assert dialect.classify(written) is kind
    assert dialect.is_error(event) is (kind is ERROR)
    assert dialect.has_real_event(event) is (kind not in (COMMENT, PREAMBLE))
    assert dialect.has_end(event) is (kind is DONE)
    if kind is ERROR and b"not json" not in event:
        assert dialect.may_hold_error(event)


@pytest.mark.parametrize("dialect", ALL)
def test_a_keep_alive_can_be_taken_back(dialect: Dialect) -> None:
    assert dialect.keep_alive.endswith(b"\n\n")
    assert not dialect.has_real_event(dialect.keep_alive * 3)
    assert not dialect.may_hold_error(dialect.keep_alive)


def test_pieces_of_several_events() -> None:
    before = CHAT.keep_alive * 2
    assert CHAT.has_real_event(before + CHAT_EVENTS[1][0])
    assert CHAT.has_end(CHAT_EVENTS[4][0] + b"data: [DONE]\n\n")
    assert not CHAT.has_end(b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n')
    assert MESSAGES.has_end(MESSAGES_EVENTS[4][0] + MESSAGES_EVENTS[5][0])
    assert not RESPONSES.has_end(b'event: response.output_text.delta\ndata: {"delta":"response.completed"}\n\n')


def test_the_paths_are_the_clients() -> None:
    assert sorted(DIALECTS) == ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
    assert all(dialect.path == path for path, dialect in DIALECTS.items())


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES])
def test_openai_errors(dialect: Dialect) -> None:
    body = json.loads(dialect.error_body(UnknownModel('no model "x"', param="model")))
    assert body == {
        "error": {"message": 'no model "x"', "type": "invalid_request_error", "code": "model_not_found", "param": "model"}
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (UnknownModel("x"), "not_found_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (HeadTooLarge("x"), "invalid_request_error"),
        (EncodedBody("x"), "invalid_request_error"),
        (ClientFault("x", status=422, code=None, param=None), "invalid_request_error"),
        (QueueFull("x"), "rate_limit_error"),
        (NoWorker("x"), "overloaded_error"),
        (EngineDied("x"), "api_error"),
    ],
)
def test_anthropic_errors(error: GatewayError, kind: str) -> None:
    assert json.loads(MESSAGES.error_body(error)) == {"type": "error", "error": {"type": kind, "message": "x"}}


@pytest.mark.parametrize("dialect", ALL)
def test_an_error_event_reads_as_one(dialect: Dialect) -> None:
    event = dialect.error_event(EngineDied("lost"))
    assert event.endswith(b"\n\n")
    assert len(split_blocks(event)) == 1
    assert dialect.is_error(event)
    assert b"lost" in dialect.event_data(event)


@pytest.mark.parametrize(
    ("dialect", "reply", "usage"),
    [
        (CHAT, b'{"choices":[{}],"usage":{"prompt_tokens":7}}', b'{"prompt_tokens":7}'),
        (CHAT, CHAT_EVENTS[4][0], b'{"prompt_tokens":7,"completion_tokens":2}'),
        (CHAT, CHAT_EVENTS[2][0], None),
        (CHAT, b'data: {"choices":[{"delta":{"content":"\\"usage\\":{}"}}]}', None),
        (CHAT, b'{"usage":', None),
        (RESPONSES, b'{"id":"r","status":"completed","usage":{"input_tokens":7}}', b'{"input_tokens":7}'),
        (
            RESPONSES,
            b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"a":1}}}\n\n',
            b'{"a":1}',
        ),
        (RESPONSES, RESPONSES_EVENTS[0][0], None),
        (MESSAGES, b'{"type":"message","usage":{"input_tokens":7,"output_tokens":1}}', b'{"input_tokens":7,"output_tokens":1}'),
        (MESSAGES, MESSAGES_EVENTS[0][0], b'{"input_tokens":9,"output_tokens":0}'),
        (MESSAGES, MESSAGES_EVENTS[4][0], b'{"output_tokens":5}'),
        (MESSAGES, b'{"usage"', None),
    ],
)
def test_usage_is_where_the_dialect_has_it(dialect: Dialect, reply: bytes, usage: bytes | None) -> None:
    assert dialect.usage(reply) == usage
    if usage is not None:
        assert dialect.may_hold_usage(reply)


def test_usage_in_pieces_becomes_whole() -> None:
    start, end = b'{"input_tokens":9,"output_tokens":0,"cache_read_input_tokens":4}', b'{"input_tokens":null,"output_tokens":5}'
    merged = msgspec.json.decode(MESSAGES.merge_usage(start, end))
    assert merged == {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 4}
    assert MESSAGES.merge_usage(None, end) == end
    assert CHAT.merge_usage(start, end) == end


@pytest.mark.parametrize(
    ("dialect", "data", "reason"),
    [
        (CHAT, CHAT_EVENTS[3][0], "tool_calls"),
        (CHAT, CHAT_EVENTS[1][0], None),
        (CHAT, b'{"choices":[{"message":{"content":"\\"finish_reason\\":\\"x\\""},"finish_reason": "stop"}]}', "stop"),
        (RESPONSES, RESPONSES_EVENTS[5][0], "completed"),
        (RESPONSES, b'{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}', "max_output_tokens"),
        (RESPONSES, RESPONSES_EVENTS[0][0], None),
        (RESPONSES, RESPONSES_EVENTS[3][0], None),
        (RESPONSES, b"not json", None),
        (MESSAGES, MESSAGES_EVENTS[4][0], "end"),
        (MESSAGES, MESSAGES_EVENTS[3][0], None),
    ],
)
def test_finish_reasons(dialect: Dialect, data: bytes, reason: str | None) -> None:
    assert dialect.finish_reason(data) == reason


def test_the_fields_of_an_event() -> None:
    event = b"id: 1\nevent: x\ndata: a\ndata:b\nretry: 3\n\n"
    assert (event_name(event), event_data(event)) == (b"x", b"a\nb")
    assert (event_name(b"data: event: y\n\n"), event_data(b"event: y\n\n")) == (None, None)
    assert split_blocks(b"a\r\n\r\nb\n\n") == [b"a", b"b"]
