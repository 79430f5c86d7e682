"""A streamed chat as its client saw it, from replies that a server of the test gives."""

from __future__ import annotations

import json

import httpx
import pytest

from bench.placement.turn import ChatClient, Turn

BLANK = Turn("a", 0, 5.0, True)
DETAILS = {"cached_tokens_details": {"device": 64, "host": 0, "storage": 32}}


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def delta(**members: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": members}]}


async def asked(status: int, content: bytes) -> tuple[Turn, dict[str, object]]:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, content=content)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        turn = await ChatClient(http, "http://router", "tiny").ask([{"role": "user", "content": "go"}], 7, BLANK)
    return turn, json.loads(seen[0].content)


async def test_first_token_tiers_and_usage_are_read() -> None:
    usage = {"prompt_tokens": 120, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 96}}
    end = {"choices": [], "usage": usage, "sglext": DETAILS}
    turn, body = await asked(200, stream(delta(role="assistant", content=""), delta(content="so"), end))
    assert (turn.prompt_tokens, turn.cached_tokens, turn.cached_by_tier, turn.error) == (120, 96, {"L1": 64, "L3": 32}, "")
    assert 0 < turn.ttft_ms <= turn.e2e_ms
    assert (turn.session, turn.sent_ms, turn.first_call) == ("a", 5.0, True)
    assert (body["max_tokens"], body["stream"], body["ignore_eos"]) == (7, True, True)


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (503, b"busy", "503: b'busy'"),
        (200, stream({"error": "lost"}), "lost"),
        (200, stream(delta(role="assistant")), "no token came"),
    ],
)
async def test_what_went_wrong_is_told(status: int, content: bytes, said: str) -> None:
    turn, _ = await asked(status, content)
    assert turn.error == said
