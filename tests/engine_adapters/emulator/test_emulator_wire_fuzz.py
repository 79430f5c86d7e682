"""Whatever JSON comes, the answer is a reply or a refusal, and the next good request is answered."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from emulator_pool import FAST, Emulated, unified
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

TOOL = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
CHAT_MESSAGE = {"role": "user", "content": "hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [CHAT_MESSAGE], "tools": [TOOL], "max_tokens": 4},
    "/v1/completions": {"model": "tiny", "prompt": "hello", "max_tokens": 4},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 4}},
    "/v1/responses": {
        "model": "tiny",
        "input": [CHAT_MESSAGE],
        "tools": [{"type": "function", "name": "bash", "parameters": {}}],
        "max_output_tokens": 8,
    },
    "/v1/messages": {
        "model": "tiny",
        "messages": [CHAT_MESSAGE],
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
        "max_tokens": 4,
    },
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [CHAT_MESSAGE]},
    "/tokenize": {"model": "tiny", "messages": [CHAT_MESSAGE]},
    "/abort_request": {"rid": "nobody"},
}
_NAMES = """
model messages prompt text input_ids input instructions system tools tool_choice n rid max_tokens max_completion_tokens
max_output_tokens sampling_params max_new_tokens stream stream_options cache_salt extra_key bootstrap_host
bootstrap_port bootstrap_room response_format ignore_eos logprobs top_logprobs return_logprob logprob_start_len
top_logprobs_num echo return_cached_tokens_details chat_template_kwargs reasoning reasoning_effort metadata
output_config thinking store temperature previous_response_id request_id continue_final_message priority stop user
abort_all role content type name function parameters arguments tool_calls tool_call_id call_id format schema json_schema
properties required enum anyOf items minLength minimum default effort include_usage reasoning_content input_schema
source title output id prefix description
"""
NAMES = _NAMES.split()
_WORDS = """
user assistant system tool developer auto required none function custom text json_schema json_object object array string
integer bash tool_use tool_result image image_url thinking function_call function_call_output message reasoning
input_text output_text search_result any
"""
WORDS = _WORDS.split()
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.sampled_from([1 << 31, 1 << 40, -(1 << 63), (1 << 64) - 1, 2.5, -0.5, 1e300]),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
PATHS = sorted(BODIES)
GOOD = "/v1/chat/completions"


class Bench:
    """One worker and one loop for all examples."""

    def __init__(self, runner: asyncio.Runner, emulated: Emulated) -> None:
        self._runner = runner
        self._emulated = emulated

    def post(self, path: str, body: Any) -> int:
        return self._runner.run(self._post(path, body))

    async def _post(self, path: str, body: Any) -> int:
        async with asyncio.timeout(20.0):
            return (await self._emulated.http.post(path, json=body)).status_code

    @property
    def idle(self) -> bool:
        return self._emulated.worker.driver.model.idle


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        entered = unified(FAST)
        emulated = runner.run(entered.__aenter__())
        yield Bench(runner, emulated)
        runner.run(entered.__aexit__(None, None, None))


def changed(body: dict[str, Any], place: list[int], name: str, value: Any) -> dict[str, Any]:
    """Some object or list inside the body gets another value, as deep as `place` leads."""
    found: Any = copy.deepcopy(body)
    at = found
    for step in place:
        inner = [each for each in (at.values() if isinstance(at, dict) else at) if isinstance(each, dict | list) and each]
        if not inner:
            break
        at = inner[step % len(inner)]
    if isinstance(at, dict):
        at[name] = value
    else:
        at[len(name) % len(at)] = value
    return dict(found)


def answered(bench: Bench, path: str, body: Any) -> None:
    status = bench.post(path, body)
    assert status == 200 or 400 <= status < 500, (status, path, body)
    assert bench.idle, (path, body)
    assert bench.post(GOOD, BODIES[GOOD]) == 200, (path, body)


@pytest.mark.parametrize("path", PATHS)
def test_the_bodies_to_begin_with_are_good(bench: Bench, path: str) -> None:
    assert bench.post(path, BODIES[path]) == 200


@pytest.mark.slow
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), st.lists(st.integers(0, 4), max_size=4), st.sampled_from(NAMES), values)
@example("/v1/chat/completions", [], "cache_salt", {})
@example("/v1/chat/completions", [], "tools", 5)
@example("/tokenize", [], "tools", "user")
def test_a_changed_member_is_answered(bench: Bench, path: str, place: list[int], name: str, value: Any) -> None:
    answered(bench, path, changed(BODIES[path], place, name, value))


@pytest.mark.slow
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PATHS), values)
def test_any_value_is_answered(bench: Bench, path: str, value: Any) -> None:
    answered(bench, path, value)
