"""What usage objects of four APIs say, and the option that asks for them."""

from __future__ import annotations

import json

import pytest

from costmodel.values import Tier
from engine_adapters.adapters import adapter_for
from engine_adapters.base import EngineKind, ReplyFacts
from engine_adapters.counts import MAX_COUNT
from engine_adapters.stream_options import usage_member
from engine_adapters.usage import read_usage


@pytest.mark.parametrize(
    ("usage", "facts"),
    [
        (  # SGLang chat with --enable-cache-report
            b'{"prompt_tokens":311,"total_tokens":315,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":304}}',
            ReplyFacts(311, 4, 304),
        ),
        (b'{"prompt_tokens":311,"completion_tokens":4,"prompt_tokens_details":null}', ReplyFacts(311, 4, None)),
        (  # SGLang responses
            b'{"input_tokens":311,"input_tokens_details":{"cached_tokens":304,"cache_write_tokens":0},"output_tokens":2}',
            ReplyFacts(311, 2, 304),
        ),
        (b'{"input_tokens":7,"output_tokens":4,"cache_read_input_tokens":304}', ReplyFacts(311, 4, 304)),  # messages
        (b'{"input_tokens":7,"output_tokens":1,"cache_creation_input_tokens":3}', ReplyFacts(10, 1, None)),
        (b'{"output_tokens":4}', ReplyFacts(0, 4, None)),  # message_delta
        (b'{"prompt_tokens":9,"completion_tokens":1,"cached_tokens":8}', ReplyFacts(9, 1, 8)),
        (b'{"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":0}', ReplyFacts(9, 1, 0)),
        (b"null", ReplyFacts()),
        (b'{"prompt_tokens":"x"}', ReplyFacts()),
    ],
)
def test_usage_of_every_api(usage: bytes, facts: ReplyFacts) -> None:
    assert read_usage(usage) == facts


@pytest.mark.parametrize(
    ("details", "tiers"),
    [
        (b'{"cached_tokens_details":{"device":304,"host":0}}', {Tier.L1: 304}),
        (
            b'{"cached_tokens_details":{"device":0,"host":16,"storage":800,"storage_backend":"file"}}',
            {Tier.L2: 16, Tier.L3: 800},
        ),
        (b'{"cached_tokens_details":null}', None),
        (b'{"routed_experts":"x"}', None),
        (b"[]", None),
    ],
)
def test_sglang_tells_the_tiers(details: bytes, tiers: dict[Tier, int] | None) -> None:
    facts = adapter_for(EngineKind.SGLANG).facts(b'{"prompt_tokens":900,"completion_tokens":1}', details)
    assert (facts.prompt_tokens, facts.cached_by_tier) == (900, tiers)


@pytest.mark.parametrize(
    ("client", "options"),
    [
        (None, {"include_usage": True}),
        (b"null", {"include_usage": True}),
        (b" {} ", {"include_usage": True}),
        (b'{"include_usage":false,"continuous_usage_stats":true}', {"include_usage": True, "continuous_usage_stats": True}),
        (b'{"other":{"a":[1,"\\u00e9"]}}', {"other": {"a": [1, "é"]}, "include_usage": True}),
    ],
)
def test_usage_is_asked_for_beside_the_clients_options(client: bytes | None, options: dict[str, object]) -> None:
    assert json.loads(b"{" + usage_member(client) + b"}") == {"stream_options": options}


def test_options_that_are_no_object_are_left_to_the_engine() -> None:
    assert usage_member(b'"yes"') == b""


@pytest.mark.parametrize("number", ["-5", "1" + "0" * 400])
def test_absurd_counts_are_bounded(number: str) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    facts = read_usage(("{" + ",".join(f'"{name}":{number}' for name in names) + "}").encode())
    assert all(0 <= told <= MAX_COUNT for told in (facts.prompt_tokens, facts.completion_tokens, facts.cached_tokens or 0))
    details = f'{{"cached_tokens_details":{{"device":{number},"host":2}}}}'.encode()
    assert (adapter_for(EngineKind.SGLANG).facts(b"{}", details).cached_by_tier or {})[Tier.L2] == 2


def test_deep_nesting_says_nothing() -> None:
    assert read_usage(b'{"x":' + b"[" * 100_000) == ReplyFacts()
