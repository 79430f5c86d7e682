from __future__ import annotations

import json
from typing import Any

import pytest
from recordings import Desk

from router.body.scan import scan
from router.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from router.threads.lineage import MAX_POSITIONS, Lineage, State, Tracer, signed


def trace(body: bytes, dialect: Any = CHAT) -> Lineage:
    scanned: Any = scan(body, dialect)
    return Tracer().trace(scanned)


def chat(messages: list[object], **members: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


USER = {"role": "user", "content": "hi"}


def test_every_message_adds_a_position_that_names_all_before_it() -> None:
    long, short = trace(chat([USER, USER, {"role": "user", "content": "x"}])), trace(chat([USER, USER]))
    assert long.digests[:2] == short.digests
    assert len({long.head, *long.digests}) == 4
    assert all(-(2**63) <= digest < 2**63 for digest in [long.head, *long.digests])
    assert long.sizes == sorted(long.sizes)


@pytest.mark.parametrize(
    "members",
    [
        {"model": "n"},
        {"tools": [{"name": "t"}]},
        {"cache_salt": "a"},
        {"lora_path": "a"},
        {"extra_key": "a"},
        {"previous_response_id": "r"},
    ],
)
def test_the_head_is_in_every_digest(members: dict[str, object]) -> None:
    plain, other = trace(chat([USER])), trace(chat([USER], **members))
    assert plain.head != other.head
    assert plain.digests != other.digests


def test_the_system_prompt_is_part_of_the_head() -> None:
    heads = {trace(chat([USER], system=system), MESSAGES).head for system in ("a", "b", "", None)}
    assert len(heads) == 3


def test_sampling_parameters_are_not_part_of_a_prompt() -> None:
    assert trace(chat([USER])).digests == trace(chat([USER], temperature=1, max_tokens=5, stream=True, tools=[])).digests


def test_the_place_of_tools_does_not_matter() -> None:
    tools = b'"tools":[{"name":"t"}]'
    bodies = [b'{"model":"m",%b,"messages":[1]}' % tools, b'{"messages":[1],%b,"model":"m"}' % tools]
    assert trace(bodies[0]).digests == trace(bodies[1]).digests


def test_messages_without_a_form_add_nothing() -> None:
    items = [{"type": "reasoning"}, USER, {"type": "reasoning"}]
    assert trace(chat(items, input=items), RESPONSES).digests == trace(chat([], input="hi"), RESPONSES).digests


def test_one_conversation_is_one_lineage_in_every_dialect() -> None:
    lineages = [trace(chat([USER]), CHAT), trace(chat([USER]), MESSAGES), trace(chat([], input=[USER]), RESPONSES)]
    assert len({tuple(lineage.digests) for lineage in lineages}) == 1


def test_a_prompt_that_grows_keeps_its_full_blocks() -> None:
    def completion(prompt: object) -> Lineage:
        return trace(json.dumps({"model": "m", "prompt": prompt}).encode(), COMPLETIONS)

    short, long = completion("x" * 5000), completion("x" * 9000)
    assert len(short.digests) == short.open_from == 3
    assert long.digests[:2] == short.digests[:2]
    assert long.digests[2] != short.digests[2]
    ids = completion(list(range(2000)))
    assert completion(list(range(2500))).digests[: len(ids.digests) - 1] == ids.digests[:-1]


def test_states_lead_to_the_same_lineage() -> None:
    """A lineage resumed in the middle has the digests of the whole one; the tools come last."""
    desk = Desk()
    turns = [{"role": "user", "content": f"{n} " + "text " * 500} for n in range(40)]
    desk.see(chat(turns[:30], tools=[{"name": "t"}]), CHAT)
    scanned = desk.scan(chat(turns, tools=[{"name": "t"}]), CHAT)
    assert scanned.first_message >= 20
    resumed = Tracer().trace(scanned)
    whole = trace(chat(turns, tools=[{"name": "t"}]))
    assert resumed.base.positions == scanned.first_message
    assert resumed.base_digest == whole.digests[scanned.first_message - 1]
    assert resumed.digests == whole.digests[scanned.first_message :]
    assert resumed.sizes == whole.sizes[scanned.first_message :]


def test_states_are_made_only_where_a_memo_wants_them() -> None:
    desk = Desk()
    small: list[State] | None = Tracer().trace(desk.scan(chat([USER]), CHAT)).states
    large = Tracer().trace(desk.scan(chat([{"role": "user", "content": "x" * 20_000}]), CHAT)).states
    assert small is None
    assert large is not None
    assert len(large) == 1


def test_a_remembered_form_is_the_same() -> None:
    tracer = Tracer()
    scanned: Any = scan(chat([USER, {"role": "user", "content": ["x", {"type": "image", "source": "y"}]}]), CHAT)
    assert tracer.trace(scanned) == tracer.trace(scanned)
    assert tracer.trace(scanned).media


def test_signed() -> None:
    assert [signed(digest) for digest in (0, 1, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 1, 2**63 - 1, -(2**63), -1]


@pytest.mark.parametrize("message", [7, "x", {"type": "reasoning"}, USER])
def test_tracing_ends_at_the_bound(message: object) -> None:
    whole = chat([USER, *[message] * (MAX_POSITIONS + 50)])
    lineage = trace(whole)
    assert len(lineage.digests) == (1 if message == {"type": "reasoning"} else MAX_POSITIONS)
    assert lineage.digests == trace(chat([USER, *[message] * (MAX_POSITIONS - 1)])).digests


@pytest.mark.slow
def test_tracing_of_a_prompt_ends_at_the_bound() -> None:
    body = json.dumps({"model": "m", "prompt": "x" * (MAX_POSITIONS + 5) * 2048}).encode()
    assert len(trace(body, COMPLETIONS).digests) == MAX_POSITIONS


def test_tracing_goes_on_from_the_memo_up_to_the_same_bound() -> None:
    desk = Desk()
    body = chat([USER] * (MAX_POSITIONS + 3000))
    first = desk.scan(body, CHAT)
    lineage = Tracer().trace(first)
    assert lineage.states is not None
    assert len(lineage.states) == MAX_POSITIONS
    desk.see(body, CHAT)
    longer = desk.scan(body[:-2] + b',{"role":"user","content":"more"}]}', CHAT)
    assert 0 < longer.first_message <= MAX_POSITIONS
    resumed = Tracer().trace(longer)
    assert resumed.digests == lineage.digests[longer.first_message :]


@pytest.mark.slow
def test_sizes_are_bounded_by_what_an_array_holds() -> None:
    images = {"role": "user", "content": [{"type": "image"}] * 1000}
    lineage = trace(chat([images] * 1100))
    assert lineage.sizes[-1] == 2**32 - 1
    assert lineage.sizes == sorted(lineage.sizes)
