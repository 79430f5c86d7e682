"""Events that fit a shape must hold nothing but a token."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.turn.shape import EventShape


def event(content: str, **members: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content, "tool_calls": None}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c", "choices": [choice | members], "usage": None}).encode() + b"\n\n"


def learned(*contents: str) -> EventShape:
    shape = EventShape()
    for content in contents:
        shape.learn(event(content))
    return shape


def test_nothing_fits_before_two_events_were_seen() -> None:
    assert not EventShape().fits(event("a"))
    assert not learned("a").fits(event("b"))


@pytest.mark.parametrize("contents", [("a", "b"), (" the", " then"), ("ing", "thing"), ("", "x"), ("aXb", "aYb"), ("x", "")])
def test_tokens_fit(contents: tuple[str, str]) -> None:
    shape = learned(*contents)
    for content in ("", "x", " the quick", "[DONE]", ": error", "é", "a" * 10_000):
        assert shape.fits(event(content))


@pytest.mark.parametrize("content", ['"', "\n", '\\"', 'x"y'])
def test_tokens_with_quotes_are_searched(content: str) -> None:
    shape = learned("a", "b")
    assert shape.fits(event(content)) is (content == "\n")  # a line break is escaped in JSON


@pytest.mark.parametrize(
    "other",
    [
        event("x", finish_reason="stop"),
        event("x", delta={"tool_calls": [{"index": 0}]}),
        b'data: {"error": {"message": "x"}}\n\n',
        b"data: [DONE]\n\n",
        b": keep-alive\n\n",
        event("x") + b"data: [DONE]\n\n",
        b"data: [DONE]\n\n" + event("x"),
        event("x") + event("y", finish_reason="stop"),
        event("x") + event("y")[:-1],
        event("x").replace(b'"usage": null', b'"usage": {"prompt_tokens": 1}'),
        event("x")[:-2] + b"\nevent: error\n\n",
    ],
)
def test_other_events_do_not_fit(other: bytes) -> None:
    assert not learned("a", "b").fits(other)


def test_several_events_in_one_piece_fit() -> None:
    assert learned("a", "b").fits(event("x") + event("") + event("y"))


def test_one_string_cannot_hide_another_event() -> None:
    head, tail = event("|").split(b"|")
    assert not learned("a", "b").fits(head + b"\n\nevent: error\n\n" + tail)


def test_the_same_event_again_teaches_nothing() -> None:
    assert not learned("a", "a").fits(event("a"))


def test_a_new_shape_replaces_the_old_one() -> None:
    shape = learned("a", "b")
    for content in ("a", "b"):
        shape.learn(event(content, logprobs=None))
    assert shape.fits(event("c", logprobs=None))


def test_streams_that_never_settle_are_left_alone() -> None:
    shape = EventShape()
    for number in range(100):
        shape.learn(b'data: {"n": %d, "delta": "%d"}\n\n' % (number, number * 7))
    shape.learn(event("a"))
    shape.learn(event("b"))
    assert not shape.fits(event("c"))


@given(first=st.text(), second=st.text(), third=st.binary(max_size=40))
def test_what_fits_differs_in_one_plain_string(first: str, second: str, third: bytes) -> None:
    shape = learned(first, second)
    head, tail = event("|").split(b"|")
    candidate = head + third + tail
    if shape.fits(candidate):
        assert b'"' not in third
        assert b"\n" not in third
