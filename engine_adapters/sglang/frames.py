"""The ZMQ frames around KV events, live and replayed, as SGLang and vLLM send them. Pure.

Live: `[topic, seq, payload]`, seq an unsigned 64-bit big-endian number that starts at 0 with each start of the engine. Newer
SGLang ends the topic in `\\0sgl-kv-epoch=EPOCH`, and `\\0sgl-kv-snapshot=ID` after that on the empty batch at which it cut a
snapshot. Replay: the request is `["", first seq]`, the replies are
`["", topic, seq, payload]` (older vLLM leaves the topic out), and the last has a seq of all ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_EPOCH_MARK = b"\0sgl-kv-epoch="
_BARRIER_MARK = b"\0sgl-kv-snapshot="
_SEQ_BYTES = 8
_END_SEQ = b"\xff" * _SEQ_BYTES


class Frame(msgspec.Struct, frozen=True):
    """One batch on the wire. `epoch` is None where the engine tells none."""

    epoch: str | None
    seq: int
    payload: bytes


class EndOfReplay(msgspec.Struct, frozen=True):
    """The engine has sent all it had kept."""


def live_frame(parts: Sequence[bytes]) -> Frame | None:
    """A message of the subscription; None when it is not one of KV events."""
    if len(parts) != 3 or len(parts[1]) != _SEQ_BYTES:
        return None
    return Frame(epoch_of(parts[0]), int.from_bytes(parts[1], "big"), parts[2])


def replay_request(from_seq: int) -> list[bytes]:
    return [b"", from_seq.to_bytes(_SEQ_BYTES, "big")]


def replay_frame(parts: Sequence[bytes]) -> Frame | EndOfReplay | None:
    """A message of the replay; None when it cannot be understood."""
    if len(parts) not in (3, 4) or parts[0] != b"" or len(parts[-2]) != _SEQ_BYTES:
        return None
    if parts[-2] == _END_SEQ:
        return EndOfReplay()
    topic = parts[1] if len(parts) == 4 else b""
    return Frame(epoch_of(topic), int.from_bytes(parts[-2], "big"), parts[-1])


def epoch_of(topic: bytes) -> str | None:
    _, mark, rest = topic.partition(_EPOCH_MARK)
    return rest.partition(_BARRIER_MARK)[0].decode("utf-8", "replace") if mark else None
