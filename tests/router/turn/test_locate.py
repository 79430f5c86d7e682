"""Which evidence counts for which worker: KV events, the thread's lineage, or what replies told of evictions."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from costmodel.values import Decision, Scored, Terms, Tier, WorkerKey
from engine_adapters.base import EngineInfo
from kvtier.index.events import BlocksStored
from kvtier.index.source_key import NodeKey
from router.config.load import parse_config
from router.fleet.pool import Pool
from router.threads.sighting import Kind, Sighting, TokenCounts
from router.turn.locate import assume, locate, retract
from router.turn.place import Placement

P0, P1, D0 = WorkerKey("p0"), WorkerKey("p1"), WorkerKey("d0")
CONFIG = """
pools:
  - prefill: [{url: 'http://127.0.0.1:1', name: p0}, {url: 'http://127.0.0.1:2', name: p1}]
    decode: [{url: 'http://127.0.0.1:3', name: d0}]
"""
SIGHTING = Sighting(
    thread="t",
    session="s",
    kind=Kind.CONTINUED,
    first_call=False,
    digests=array("q", [11, 12, 13]),
    tokens=TokenCounts([400, 800, 1200], 0.25),
    known=2,
    known_tokens=200,
    multimodal=False,
    parent=None,
    session_started_ms=0,
    idle_ms=0,
    retries=0,
    expected_output_tokens=10,
    prompt_tokens=300,
)
TOKENISED = msgspec.structs.replace(SIGHTING, blocks=array("q", [1, 2, 3, 4]), block_tokens=64)


@pytest.fixture
def pool() -> Pool:
    config = parse_config(CONFIG, "test", {})
    made = Pool(config.pools[0], config)
    for worker in made.workers.values():
        worker.discovered(EngineInfo("sglang", ("m",), page_size=16))
    return made


def tokens_at(pool: Pool, sighting: Sighting, now_ms: float = 0) -> dict[WorkerKey, int]:
    return {key: held.tokens for key, held in locate(pool, sighting, now_ms).residencies.items()}


def test_without_block_hashes_the_lineage_answers_in_whole_pages(pool):
    pool.lineage.assume(P0, [11, 12], Tier.L1, 0)
    assert tokens_at(pool, SIGHTING) == {P0: 192}  # 200 tokens, pages of 16


def test_events_speak_for_the_workers_that_send_them_and_the_lineage_for_the_rest(pool):
    pool.lineage.assume(P0, [11, 12], Tier.L1, 0)
    pool.lineage.assume(P1, [11, 12], Tier.L1, 0)
    pool.blocks.apply(P1, BlocksStored((1,), None, Tier.L2, 64), 0)
    assert tokens_at(pool, TOKENISED) == {P0: 192, P1: 64}
    assert locate(pool, TOKENISED, 0).residencies[P1].runs[0].tier is Tier.L2


def test_pages_of_other_nodes_count_where_they_are_brought_near(pool):
    pool.blocks.apply(NodeKey("b"), BlocksStored((1, 2, 3), None, Tier.L3, 64), 0)
    pool.blocks.attach(P0, "a", brought=True)
    pool.blocks.attach(P1, "b", brought=True)
    assert tokens_at(pool, TOKENISED) == {P1: 192}
    pool.pages_come = True
    assert tokens_at(pool, TOKENISED) == {P0: 192, P1: 192}


def test_of_very_many_blocks_some_are_looked_up(pool):
    """A page size of 1: one block a token."""
    many = array("q", range(1, 30_001))
    long = msgspec.structs.replace(SIGHTING, blocks=many, block_tokens=1, prompt_tokens=30_010)
    pool.blocks.apply(P0, BlocksStored(tuple(many[:20_001]), None, Tier.L1, 1), 0)
    pool.blocks.apply(P1, BlocksStored(tuple(many), None, Tier.L1, 1), 0)
    assert tokens_at(pool, long) == {P0: 20_000, P1: 30_000}


def test_a_followed_worker_that_holds_nothing_is_not_believed_to(pool):
    pool.lineage.assume(P1, [11, 12], Tier.L1, 0)
    pool.blocks.apply(P1, BlocksStored((99,), None, Tier.L1, 64), 0)
    assert tokens_at(pool, TOKENISED) == {}


def test_a_source_that_is_not_trusted_goes_by_lineage_again(pool):
    pool.lineage.assume(P1, [11, 12], Tier.L1, 0)
    pool.blocks.apply(P1, BlocksStored((1, 2), None, Tier.L1, 64), 0)
    pool.blocks.set_trust(P1, False)
    assert tokens_at(pool, TOKENISED) == {P1: 192}


def test_multimodal_threads_go_by_lineage_whatever_events_say(pool):
    pool.lineage.assume(P0, [11, 12, 13], Tier.L1, 0)
    pool.blocks.apply(P1, BlocksStored((1, 2, 3, 4), None, Tier.L1, 64), 0)
    assert tokens_at(pool, msgspec.structs.replace(TOKENISED, multimodal=True)) == {P0: 288}


def test_a_reply_that_told_of_younger_evictions_takes_the_threads_own_prompt_for_gone(pool):
    pool.lineage.assume(P0, [11, 12], Tier.L1, 0)
    placed = msgspec.structs.replace(SIGHTING, prefill_before=P0, placed_ms=100.0)
    assert P0 in tokens_at(pool, placed, 200)
    pool.workers["p0"].ranks[0].evicted_before(150.0)
    assert P0 not in tokens_at(pool, placed, 200)
    younger = msgspec.structs.replace(placed, placed_ms=160.0)
    assert P0 in tokens_at(pool, younger, 200)


def test_what_was_assumed_for_a_turn_that_was_refused_is_taken_back(pool):
    pool.lineage.assume(P0, [11], Tier.L1, 0)
    scored = Scored(P0, D0, 0, None, Terms())
    placement = Placement(Decision(scored, (), "cost", ""), pool.workers["p0"], pool.workers["d0"])
    assumed = assume(pool, SIGHTING, placement, locate(pool, SIGHTING, 0), 0)
    assert tokens_at(pool, SIGHTING)[P0] == 288
    retract(pool, assumed)
    assert tokens_at(pool, SIGHTING)[P0] == 96, "what lay there before stays"


def test_the_pool_counts_for_a_worker_without_events_where_it_goes_further_than_its_lineage(pool):
    pool.lineage.assume(P0, [11, 12], Tier.L1, 0)
    pool.blocks.attach(P0, "a")
    pool.blocks.attach(P1, "a")
    pool.blocks.apply(NodeKey("a"), BlocksStored((1, 2), None, Tier.L3, 64), 0)
    assert tokens_at(pool, TOKENISED) == {P0: 192, P1: 128}
    pool.blocks.apply(NodeKey("a"), BlocksStored((3, 4), None, Tier.L3, 64), 0)
    found = locate(pool, TOKENISED, 0).residencies
    assert {key: [(run.tier, run.source) for run in held.runs] for key, held in found.items()} == {
        P0: [(Tier.L3, "a")],
        P1: [(Tier.L3, "a")],
    }
