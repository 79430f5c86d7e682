"""Vectors from vLLM's own hasher, captures of the running engine, and incremental against whole hashing."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.hashing.vllm import Chain, HashAlgorithm, Lora, event_id, event_ids, none_hash, root

DATA = Path(__file__).parent.parent / "data"
CASES = [json.loads(line) for line in (DATA / "kvtier" / "vllm_blocks.jsonl").read_text(encoding="utf-8").splitlines()]
UNSIGNED = (1 << 64) - 1


def root_of(case: dict[str, Any]) -> Chain:
    return root(
        case["page_size"],
        HashAlgorithm(case["algorithm"]),
        hash_seed=case["hash_seed"],
        lora=Lora(*case["lora"]) if case["lora"] else None,
        cache_salt=case["cache_salt"],
    )


@pytest.mark.parametrize(
    ("algorithm", "cases"), [(name, list(group)) for name, group in groupby(CASES, lambda c: c["algorithm"])]
)
def test_vectors_of_the_engines_own_hasher(algorithm: str, cases: list[dict[str, Any]]) -> None:
    assert len(cases) >= 12
    for case in cases:
        chain = root_of(case)
        assert chain.none_hash.hex() == case["none_hash"]
        digests = chain.extend_digests(case["tokens"])[1]
        assert [digest.hex() for digest in digests] == case["hashes"]
        assert [event_id(digest) & UNSIGNED for digest in digests] == case["event_ids"]


@pytest.mark.parametrize(("capture", "blocks"), [("vllm_kv_events.jsonl", 34), ("vllm_kv_evict_events.jsonl", 225)])
def test_captures_of_the_running_engine(capture: str, blocks: int) -> None:
    chains: dict[int, Chain] = {}
    for line in (DATA / "engines" / capture).read_text().splitlines():
        _, events, *_ = msgspec.msgpack.decode(bytes.fromhex(json.loads(line)["payload_hex"]))
        for event in events:
            if event["type"] != "BlockStored":
                continue
            chain = root(event["block_size"]) if event["parent_block_hash"] is None else chains[event["parent_block_hash"]]
            ids = event["token_ids"]
            for number, published in enumerate(event["block_hashes"]):
                chain, (derived,) = chain.extend(ids[number * chain.page_size : (number + 1) * chain.page_size])
                assert derived & UNSIGNED == published
                chains[published] = chain
    assert len(chains) == blocks


def test_xxhash_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="PYTHONHASHSEED"):
        none_hash(HashAlgorithm.XXHASH, None)


tokens_lists = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=6)


@pytest.mark.slow
@given(pieces=tokens_lists, page_size=st.integers(1, 8), salt=st.sampled_from([None, "tenant-a"]), data=st.data())
def test_extending_and_resuming_is_hashing_at_once(
    pieces: list[list[int]], page_size: int, salt: str | None, data: st.DataObject
) -> None:
    start = chain = root(page_size, cache_salt=salt)
    digests: list[bytes] = []
    for piece in pieces:
        chain, new = chain.extend_digests(piece)
        digests += new
    tokens = [token for piece in pieces for token in piece]
    assert tuple(start.ids(digests)) == event_ids(tokens, start)
    assert len(digests) == start.full_pages(len(tokens)) == chain.pages
    pages = data.draw(st.integers(0, len(digests)))
    kept = data.draw(st.integers(pages * page_size, len(tokens)))
    resumed = start.resumed(pages, digests[pages - 1] if pages else b"", tokens[pages * page_size : kept])
    assert resumed.extend_digests(tokens[kept:]) == (chain, digests[pages:])
