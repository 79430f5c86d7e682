"""Keys: every field of the identity tells pages apart, MLA pages are one for all ranks, digests are what the engine says."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from kvtier.page.key import DIGEST_BYTES, KEY_BYTES, PageKeys, digest_of, join_digests, page_key, space_of
from kvtier.page.space import REPLICATED, SPACE_BYTES, PageSpace, Shard, space_digest

SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
OTHERS: list[dict[str, Any]] = [
    {"model": "n"},
    {"revision": "abc"},
    {"kv_dtype": "fp8_e4m3"},
    {"layout": "page_head"},
    {"page_tokens": 64},
    {"pool": "mamba"},
    {"namespace": "tenant"},
    {"shard": Shard(tp_rank=0, tp_size=2)},
    {"shard": Shard(tp_rank=1, tp_size=2)},
    {"shard": Shard(pp_rank=1, pp_size=2)},
    {"shard": Shard(cp_rank=1, cp_size=2)},
    {"shard": Shard(tp_rank=REPLICATED)},
]


def test_every_field_makes_another_space() -> None:
    spaces = [SPACE, *(msgspec.structs.replace(SPACE, **other) for other in OTHERS)]
    digests = {space_digest(space) for space in spaces}
    assert len(digests) == len(spaces)
    assert {len(digest) for digest in digests} == {SPACE_BYTES}


def test_a_space_keeps_its_name() -> None:
    """Pages on SSD are found under it after an upgrade: a change of this value orphans them, on purpose or not."""
    assert space_digest(SPACE).hex() == "857d63bed6d445e54f4003d9b60be5a2"


def test_shards_of_one_page_belong_together() -> None:
    ranks = [
        PageSpace("m", "bf16", "l", 16, shard=Shard(tp, 2, pp, 2, cp, 2)) for tp in (0, 1) for pp in (0, 1) for cp in (0, 1)
    ]
    assert len({space_digest(rank.whole) for rank in ranks}) == 1
    assert sorted(rank.shard.index for rank in ranks) == list(range(8))
    assert {rank.shard.count for rank in ranks} == {8}
    assert SPACE.whole == SPACE


def test_a_replicated_page_is_whole_for_every_rank() -> None:
    shard = Shard(tp_rank=REPLICATED)
    assert (shard.index, shard.count) == (0, 1)
    assert msgspec.structs.replace(SPACE, shard=shard).whole.shard == shard


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Shard, {"tp_rank": 2, "tp_size": 2}),
        (Shard, {"tp_rank": REPLICATED, "tp_size": 2}),
        (Shard, {"pp_rank": -1}),
        (Shard, {"tp_size": 65, "pp_size": 64}),
        (PageSpace, {"model": "", "kv_dtype": "d", "layout": "l", "page_tokens": 16}),
        (PageSpace, {"model": "m", "kv_dtype": "d", "layout": "l", "page_tokens": 0}),
    ],
)
def test_impossible_identities_are_refused(kind: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        kind(**wrong)


def test_keys_are_cut_from_joined_digests() -> None:
    space = space_digest(SPACE)
    joined = join_digests(["11" * 32, "22" * 32])
    keys = PageKeys(space, joined)
    assert list(keys) == [page_key(space, b"\x11" * 32), page_key(space, b"\x22" * 32)]
    assert {len(key) for key in keys} == {KEY_BYTES}
    assert (space_of(keys[1]), digest_of(keys[1])) == (space, b"\x22" * 32)


def test_broken_digests_are_refused() -> None:
    with pytest.raises(ValueError, match="32"):
        join_digests(["11" * 31])
    with pytest.raises(ValueError, match="multiple"):
        PageKeys(space_digest(SPACE), b"x" * 33)


def test_a_key_is_taken_without_copying_those_behind_it() -> None:
    """Else a request about many pages that are not here costs their number squared."""
    keys = PageKeys(space_digest(SPACE), bytes(DIGEST_BYTES) * 100_000)
    tracemalloc.start()
    assert keys[1] == keys[-1]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 * KEY_BYTES
