"""Golden vectors from SGLang's parity tests, a capture of the running engine, and incremental against whole hashing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.hashing.sglang import Chain, event_ids, event_seed, storage_seed

DATA = Path(__file__).parent.parent / "data" / "kvtier"


@pytest.mark.parametrize(
    ("tokens", "page_size", "expected"),
    [
        ([1, 2, 3, 4], 4, (-3488128144981237669,)),
        ([1, 2, 3, 4, 5], 4, (-3488128144981237669,)),  # the partial page has no identity
        (
            [10, 20, 30, 40, 50, 60, 70, 80],
            2,
            (978178666101069530, -895308556211281782, -8033692805846017938, 835415944263129316),
        ),
        ([1, 2, 7, 8], 2, (3817746824117602890, 863173374788446151)),
        ([1], 2, ()),
    ],
)
def test_golden_event_ids(tokens: list[int], page_size: int, expected: tuple[int, ...]) -> None:
    assert event_ids(tokens, page_size) == expected


def test_golden_salted_event_ids() -> None:
    assert event_ids([1, 2, 7, 8], 2, cache_salt="tenant-a") == (31502315585564397, 4743673046050733608)
    assert event_ids([1, 2, 7, 8], 2, cache_salt="") == event_ids([1, 2, 7, 8], 2)


def test_golden_bigram_event_ids() -> None:
    assert event_ids([1, 2, 3, 4, 5], 2, bigram=True) == (-1303529142941650691, 7461429976246528554)
    salted = event_ids([1, 2, 3, 4, 5], 2, bigram=True, cache_salt="tenant-a")
    assert salted == (-917167591797244239, -2358740299580856252)


def test_golden_storage_keys() -> None:
    plain = [digest.hex() for digest in Chain(2).extend_digests([1, 2, 7, 8])[1]]
    assert [(key[:8], key[-4:]) for key in plain] == [("34fb5c82", "fa1f"), ("0bfa9b9c", "8a75")]
    seeded = Chain(2, digest=storage_seed("adapter-a", "tenant-a"))
    keys = [digest.hex() for digest in seeded.extend_digests([1, 2, 7, 8])[1]]
    assert [(key[:16], key[-3:]) for key in keys] == [("91b8b854063250a8", "d1a"), ("61564924b362103d", "1f8")]


def test_chains_coincide_without_a_namespace_and_differ_with_one() -> None:
    assert event_seed(None) == storage_seed(None, None) == storage_seed(None, "") == b""
    assert event_seed("tenant-a") != storage_seed(None, "tenant-a")
    assert storage_seed("", None) != b""


def test_capture_of_the_running_engine() -> None:
    capture = json.loads((DATA / "sglang_blocks.json").read_text())
    chain = Chain(capture["block_size"])
    for event in capture["chain"]:
        chain, ids = chain.extend(event["token_ids"])
        assert list(ids) == event["block_hashes"]
    assert chain.pages == sum(len(event["block_hashes"]) for event in capture["chain"])


tokens_lists = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=20), max_size=6)


@given(pieces=tokens_lists, page_size=st.integers(1, 8), bigram=st.booleans())
def test_extending_in_pieces_is_hashing_at_once(pieces: list[list[int]], page_size: int, bigram: bool) -> None:
    chain = Chain(page_size, bigram)
    ids: tuple[int, ...] = ()
    for piece in pieces:
        chain, new = chain.extend(piece)
        ids += new
    tokens = [token for piece in pieces for token in piece]
    assert ids == event_ids(tokens, page_size, bigram=bigram)
    assert chain.tokens == len(tokens)
    assert chain.pages == len(ids) == max(0, len(tokens) - bigram) // page_size


def test_a_chain_may_be_forked() -> None:
    trunk, _ = Chain(2).extend([1, 2, 3])
    left, left_ids = trunk.extend([4, 5])
    _, right_ids = trunk.extend([9])
    assert left_ids == event_ids([1, 2, 3, 4, 5], 2)[1:]
    assert right_ids == event_ids([1, 2, 3, 9], 2)[1:]
    assert left.extend([])[0] == left


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size"):
        Chain(0)
    with pytest.raises(OverflowError):
        Chain(1).extend([-1])


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=60), page_size=st.integers(1, 8), bigram=st.booleans(), data=st.data()
)
def test_a_chain_is_taken_up_in_its_middle(tokens: list[int], page_size: int, bigram: bool, data: st.DataObject) -> None:
    start = Chain(page_size, bigram, event_seed("tenant-a"))
    end, digests = start.extend_digests(tokens)
    assert start.full_pages(len(tokens)) == len(digests)
    pages = data.draw(st.integers(0, len(digests)))
    kept = data.draw(st.integers(pages * page_size, len(tokens)))
    resumed = start.resumed(pages, digests[pages - 1] if pages else b"", tokens[pages * page_size : kept])
    assert resumed.extend_digests(tokens[kept:]) == (end, digests[pages:])
    assert tuple(start.ids(digests)) == start.extend(tokens)[1]
