from __future__ import annotations

import json

import pytest

from router.body.fanout import merge_replies, merge_usages, rewrite_choice_index


def reply(content: str, completion_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": 7,
        "total_tokens": 7 + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    choice = {"index": 0, "message": {"content": content, "tool_calls": [{"index": 0}]}, "finish_reason": "stop"}
    return json.dumps({"id": "a", "choices": [choice], "usage": usage, "sglext": {"x": 1}}).encode()


def test_replies_become_one() -> None:
    merged = json.loads(merge_replies([reply("one", 2), reply('{"index":0}', 3), reply("three", 4)]))
    assert [choice["index"] for choice in merged["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in merged["choices"]] == ["one", '{"index":0}', "three"]
    assert merged["choices"][2]["message"]["tool_calls"] == [{"index": 0}]
    assert merged["usage"] == {
        "prompt_tokens": 7,
        "total_tokens": 16,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert (merged["id"], merged["sglext"]) == ("a", {"x": 1})


def test_usage_that_is_missing_somewhere_is_left_alone() -> None:
    merged = json.loads(merge_replies([reply("one", 2), b'{"choices":[{"index":0}]}']))
    assert len(merged["choices"]) == 2
    assert merged["usage"]["completion_tokens"] == 2


def test_null_usage_stays_null() -> None:
    assert merge_usages([b"null", b"null"]) == b"null"


def test_a_reply_without_choices_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="choices"):
        merge_replies([b'{"error":{}}'])


@pytest.mark.parametrize(
    ("event", "rewritten"),
    [
        (
            b'data: {"id":"x","choices":[{"index":0,"delta":{"index":5}}]}\n\n',
            b'data: {"id":"y","choices":[{"index":3,"delta":{"index":5}}]}\n\n',
        ),
        (b'data: {"choices":[],"usage":{},"id":"x"}\n\n', b'data: {"choices":[],"usage":{},"id":"y"}\n\n'),
        (
            b'data: {"choices":[{"delta":{"content":"\\"index\\":0"}, "index" : 0}]}',
            b'data: {"choices":[{"delta":{"content":"\\"index\\":0"}, "index" : 3}]}',
        ),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
        (b'data: {"error":{"message":"x"}}\n\n', b'data: {"error":{"message":"x"}}\n\n'),
    ],
)
def test_chunks_get_their_index_and_one_id(event: bytes, rewritten: bytes) -> None:
    assert rewrite_choice_index(event, 3, b"y") == rewritten


def test_the_id_stays_unless_told() -> None:
    assert rewrite_choice_index(b'{"id":"x","choices":[{"index":0}]}', 12) == b'{"id":"x","choices":[{"index":12}]}'
