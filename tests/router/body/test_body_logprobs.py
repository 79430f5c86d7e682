"""Replies as SGLang 0.5.23's prefill and decode gave them to one request, with values shortened."""

import json

from router.body.logprobs import PromptLogprobs

PREFILL = {
    "choices": [
        {
            "index": 0,
            "text": "hello thereHe",
            "logprobs": {
                "text_offset": [-1, -1, -1],
                "token_logprobs": [None, -13.1, -0.03],
                "tokens": ["hello", " there", "He"],
                "top_logprobs": [None, {"x": -0.1}, {"He": -0.03}],
            },
        }
    ]
}
DECODE = {
    "id": "d",
    "choices": [
        {
            "index": 0,
            "text": "hello thereHere",
            "logprobs": {
                "text_offset": [-1, -1],
                "token_logprobs": [-0.03, -0.01],
                "tokens": ["He", "re"],
                "top_logprobs": [{"He": -0.03}, {"re": -0.01}],
            },
        }
    ],
    "usage": {"prompt_tokens": 2},
}
WHOLE = {
    "text_offset": [-1, -1, -1, -1],
    "token_logprobs": [None, -13.1, -0.03, -0.01],
    "tokens": ["hello", " there", "He", "re"],
    "top_logprobs": [None, {"x": -0.1}, {"He": -0.03}, {"re": -0.01}],
}


def sse(*objects: dict) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in objects)


def test_a_whole_reply_gets_the_prompts_part_in_front():
    reply = json.loads(PromptLogprobs(json.dumps(PREFILL).encode()).complete(json.dumps(DECODE).encode()))
    assert reply["choices"][0]["logprobs"] == WHOLE
    assert reply["usage"] == DECODE["usage"]


def test_only_the_first_event_of_a_choice_is_completed():
    merge = PromptLogprobs(sse(PREFILL) + b"data: [DONE]\n\n")
    first = json.loads(merge.complete_events(sse(DECODE)).removeprefix(b"data: "))
    assert first["choices"][0]["logprobs"] == WHOLE
    assert merge.complete_events(sse(DECODE)) == sse(DECODE)


def test_a_reply_without_logprobs_stays_as_it_was():
    plain = b'{"choices":[{"index":0,"text":"x","logprobs":null}]}'
    assert PromptLogprobs(plain).complete(plain) == plain
    assert PromptLogprobs(json.dumps(PREFILL).encode()).complete(plain) == plain
