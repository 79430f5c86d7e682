"""Usage that no worker can have had teaches nothing."""

from __future__ import annotations

import pytest

from engine_adapters.base import EngineInfo, ReplyFacts
from router.turn.learn import believable

TOLD = EngineInfo("sglang", ("m",), page_size=16, kv_tokens_capacity=100_000)
SILENT = EngineInfo("openai", ("m",))


@pytest.mark.parametrize(
    ("prompt_tokens", "completion_tokens", "info", "expected"),
    [
        (100_000, 10, TOLD, True),
        (100_001, 10, TOLD, False),
        (10, 100_001, TOLD, True),
        (10, 2**31, TOLD, False),
        (2_000_000, 10, SILENT, True),
        (2_000_000, 10, None, True),
        (2**31, 10, SILENT, False),
        (2**31, 10, None, False),
    ],
)
def test_what_a_worker_cannot_hold_is_not_believed(
    prompt_tokens: int, completion_tokens: int, info: EngineInfo | None, expected: bool
) -> None:
    facts = ReplyFacts(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    assert believable(facts, info) is expected
