"""What a pool's workers look like to a policy: what is in flight there, in turns and in tokens, of either phase."""

from __future__ import annotations

import pytest

from costmodel.values import Fleet
from engine_adapters.base import EngineInfo
from router.config.load import parse_config
from router.fleet.ledger import Work
from router.fleet.pool import Pool
from router.turn.place import snapshot

PAIR = "pools: [{prefill: [{name: p, url: 'http://h:1'}], decode: [{name: d, url: 'http://h:2'}]}]\n"
UNIFIED = "pools: [{unified: [{name: u, url: 'http://h:1'}]}]\n"


def seen(text: str, prefilling: str, decoding: str) -> Fleet:
    """One turn of 1,000 tokens is in prefill, another of 3,000 beyond it."""
    config = parse_config(text, "test", {})
    pool = Pool(config.pools[0], config)
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
    pool.workers[prefilling].ranks[0].book_prefill(1, Work(600, 30.0, prompt_tokens=1000), 0.0)
    pool.workers[decoding].ranks[0].book_decode(1, 1000, 0.0)
    pool.workers[decoding].ranks[0].book_decode(2, 3000, 0.0)
    return snapshot(pool, {}, failed=frozenset(), now_ms=0.0)


def test_a_pair_counts_each_phase_where_it_runs() -> None:
    fleet = seen(PAIR, "p", "d")
    assert (fleet.prefills[0].inflight_turns, fleet.prefills[0].inflight_tokens) == (1, 1000)
    assert (fleet.decodes[0].inflight_turns, fleet.decodes[0].inflight_tokens) == (2, 4000)


def test_a_unified_worker_s_decode_side_counts_every_turn() -> None:
    fleet = seen(UNIFIED, "u", "u")
    assert (fleet.decodes[0].inflight_turns, fleet.decodes[0].inflight_tokens) == (2, 4000)
    assert fleet.prefills[0].inflight_turns == 2


@pytest.mark.parametrize(("text", "prefilling", "decoding"), [(PAIR, "p", "d"), (UNIFIED, "u", "u")])
def test_without_prediction_nothing_is_in_flight(text: str, prefilling: str, decoding: str) -> None:
    fleet = seen(text + "policy: {predict_on_route: false}", prefilling, decoding)
    for side in (*fleet.prefills, *fleet.decodes):
        assert (side.inflight_turns, side.inflight_tokens) == (0, 0)
