"""The frames around KV events, live and replayed."""

from __future__ import annotations

import pytest

from engine_adapters.sglang.frames import EndOfReplay, Frame, live_frame, replay_frame, replay_request

SEQ = (5).to_bytes(8, "big")


def test_a_live_batch() -> None:
    assert live_frame([b"kv-events", SEQ, b"p"]) == Frame(None, 5, b"p")


def test_a_topic_may_end_in_an_epoch() -> None:
    assert live_frame([b"kv-events\0sgl-kv-epoch=e1", SEQ, b"p"]) == Frame("e1", 5, b"p")


def test_the_batch_that_marks_a_snapshot_is_of_the_same_life() -> None:
    assert live_frame([b"kv-events\0sgl-kv-epoch=e1\0sgl-kv-snapshot=cut", SEQ, b"p"]) == Frame("e1", 5, b"p")


@pytest.mark.parametrize("parts", [[], [b"t", b"short", b"p"], [b"t", SEQ]])
def test_other_messages_are_no_batches(parts: list[bytes]) -> None:
    assert live_frame(parts) is None
    assert replay_frame(parts) is None


@pytest.mark.parametrize("parts", [[b"", b"kv-events", SEQ, b"p"], [b"", SEQ, b"p"]])
def test_a_replayed_batch_with_and_without_its_topic(parts: list[bytes]) -> None:
    assert replay_frame(parts) == Frame(None, 5, b"p")


@pytest.mark.parametrize("parts", [[b"", b"", b"\xff" * 8, b""], [b"", b"\xff" * 8, b""]])
def test_the_end_of_a_replay(parts: list[bytes]) -> None:
    assert isinstance(replay_frame(parts), EndOfReplay)


def test_a_request_for_a_replay() -> None:
    assert replay_request(258) == [b"", b"\0\0\0\0\0\0\1\2"]
