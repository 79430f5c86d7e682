"""The members and headers for each path, and the rooms."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.values import Role
from engine_adapters.base import Edit
from engine_adapters.sglang.rooms import ROOM_MAX, fresh_room
from engine_adapters.sglang.wire import PATHS, RESERVED_HEADERS, RESERVED_KEYS, bracketed, headers, members, request_id

CHAT = "/v1/chat/completions"


def added(edit: Edit) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(b"{" + members(edit) + b"}")
    return parsed


def pair(path: str, leg: Role) -> Edit:
    return Edit(
        path=path,
        stream=True,
        rid="r1",
        bootstrap_host="fd00::7",
        bootstrap_port=8998,
        bootstrap_room=7,
        prefill_dp_rank=1,
        decode_dp_rank=2,
        leg=leg,
    )


def test_a_chat_leg_of_a_pair() -> None:
    assert added(pair(CHAT, Role.DECODE)) == {
        "rid": "r1",
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "bootstrap_host": "[fd00::7]",
        "bootstrap_port": 8998,
        "bootstrap_room": 7,
        "routed_dp_rank": 2,
        "disagg_prefill_dp_rank": 1,
    }


def test_the_prefill_leg_is_routed_by_its_own_rank() -> None:
    prefill = added(pair(CHAT, Role.PREFILL))
    assert prefill["routed_dp_rank"] == 1
    assert "disagg_prefill_dp_rank" not in prefill


def test_responses_take_the_id_as_request_id_and_no_stream_options() -> None:
    assert set(added(pair("/v1/responses", Role.PREFILL))) == {
        "request_id",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "routed_dp_rank",
    }


def test_messages_take_the_id_by_header() -> None:
    edit = pair("/v1/messages", Role.PREFILL)
    assert set(added(edit)) == {"bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank"}
    assert headers(edit) == ((b"x-override-rid", b"r1"),)
    assert headers(pair(CHAT, Role.PREFILL)) == ()


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/embeddings"])
def test_other_paths_get_nothing(path: str) -> None:
    assert members(pair(path, Role.PREFILL)) == b""


def test_a_unified_leg_has_no_room_and_one_rank() -> None:
    edit = Edit(path=CHAT, stream=False, rid="r1", prefill_dp_rank=3, decode_dp_rank=3)
    assert added(edit) == {"rid": "r1", "return_cached_tokens_details": True, "routed_dp_rank": 3}


def test_a_client_that_asks_for_usage_needs_no_edit() -> None:
    edit = Edit(path=CHAT, stream=True, rid="r1", want_usage=False, stream_options=b'{"include_usage":true}')
    assert "stream_options" not in added(edit)


@pytest.mark.parametrize("leg", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("path", sorted(PATHS))
def test_every_key_that_is_spliced_for_routing_is_reserved(path: str, leg: Role) -> None:
    reporting = {"stream_options", "return_cached_tokens_details"}
    edit = pair(path, leg)
    assert set(added(edit)) - reporting <= RESERVED_KEYS
    assert {name for name, _ in headers(edit)} <= RESERVED_HEADERS


def test_request_ids_suit_their_path() -> None:
    assert request_id("/v1/responses", "ab12") == "resp_ab12"
    assert request_id(CHAT, "ab12") == "ab12"


@pytest.mark.parametrize(("host", "wire"), [("fd00::7", "[fd00::7]"), ("[fd00::7]", "[fd00::7]"), ("10.0.0.7", "10.0.0.7")])
def test_ipv6_hosts_are_bracketed(host: str, wire: str) -> None:
    assert bracketed(host) == wire


@given(seed=st.integers(), dp_size=st.integers(1, 64), data=st.data())
def test_rooms_are_never_zero_fit_63_bits_and_pick_the_rank(seed: int, dp_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, dp_size - 1))
    room = fresh_room(Random(seed), dp_size, rank)
    assert 1 <= room <= ROOM_MAX
    assert room % dp_size == rank


@pytest.mark.parametrize(("dp_size", "rank"), [(1, 1), (2, -1), (0, 0)])
def test_a_rank_that_does_not_exist_is_refused(dp_size: int, rank: int) -> None:
    with pytest.raises(ValueError, match="dp_rank"):
        fresh_room(Random(0), dp_size, rank)
