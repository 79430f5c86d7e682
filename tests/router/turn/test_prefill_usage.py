"""What a pair's prefill leg tells of its cache, in every dialect and form."""

import pytest

from router.dialects import DIALECTS
from router.turn.learn import _usage_in

CHAT = DIALECTS["/v1/chat/completions"]
USAGE = b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}'
SGLEXT = b'{"cached_tokens_details":{"device":4}}'


def test_a_whole_reply():
    reply = b'{"choices":[{"index":0}],"usage":' + USAGE + b',"sglext":' + SGLEXT + b"}"
    assert _usage_in(reply, CHAT) == (USAGE, SGLEXT)


def test_a_stream():
    reply = (
        b'data: {"choices":[{"index":0,"delta":{}}],"usage":null}\n\n'
        b'data: {"choices":[],"sglext":' + SGLEXT + b"}\n\n"
        b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n"
    )
    assert _usage_in(reply, CHAT) == (USAGE, SGLEXT)


@pytest.mark.parametrize("reply", [b"", b"garbage", b'{"choices":[]}', b"data: {\n\n"])
def test_a_reply_that_tells_nothing(reply):
    assert _usage_in(reply, CHAT) == (None, None)


def test_messages_tell_it_in_pieces():
    reply = (
        b"event: message_start\n"
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"cache_read_input_tokens":4}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":1}}\n\n'
    )
    usage, details = _usage_in(reply, DIALECTS["/v1/messages"])
    assert usage is not None
    assert b'"cache_read_input_tokens":4' in usage
    assert details is None
