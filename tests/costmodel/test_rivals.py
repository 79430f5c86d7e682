"""Every rival against examples worked out by hand from the formula of its source."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from costmodel.params import PolicyParams
from costmodel.policies import REGISTRY, Policy
from costmodel.policies.aibrix import match_percent, throughput
from costmodel.policies.dynamo import credit_blocks
from costmodel.policies.llm_d import prefix_score, queue_scores
from costmodel.policies.mooncake import ttft_ms
from costmodel.policies.sgl_router import candidates
from costmodel.policies.umbp_rfc import score as umbp_score
from costmodel.values import (
    Decode,
    DecodeRates,
    Fleet,
    Link,
    Load,
    Prefill,
    PrefillRates,
    Residency,
    Run,
    Tier,
    Turn,
    WorkerKey,
)

RATES = PrefillRates(base_ms=10.0, ms_per_token=0.02)
LINK = Link(latency_ms=1.0, bytes_per_ms=1e6)
TURN = Turn("thread", 6400, 100)
KV_BYTES = 1000.0


def p(
    name: str,
    *runs: tuple[int, Tier],
    load: Load | None = None,
    turns: int = 0,
    tokens: int = 0,
    routed: int | None = None,
    restore: dict[Tier, Link] | None = None,
) -> Prefill:
    """A prefill that holds `runs` of (tokens, tier), one behind the other."""
    held, start = [], 0
    for count, tier in runs:
        held.append(Run(start, count, tier))
        start += count
    links = {Tier.L2: LINK} if restore is None else restore
    return Prefill(WorkerKey(name), Residency(tuple(held)), load or Load(), RATES, links, turns, tokens, routed)


def d(name: str, *, load: Load | None = None, turns: int = 0, tokens: int = 0, resident: int = 0) -> Decode:
    return Decode(WorkerKey(name), load or Load(), DecodeRates(10.0, 1.0), LINK, resident, turns, tokens)


def pick(
    name: str, prefills: list[Prefill], decodes: list[Decode] | None = None, turn: Turn = TURN, seed: int = 1
) -> tuple[str, str]:
    """One fresh policy's choice in a PD pool."""
    fleet = Fleet(tuple(prefills), tuple(decodes or [d("d0")]), KV_BYTES, disaggregated=True)
    chosen = REGISTRY[name](PolicyParams()).decide(turn, fleet, 0.0, random.Random(seed)).chosen
    return chosen.prefill.worker_id, chosen.decode.worker_id


def pick_unified(name: str, workers: list[Prefill], turn: Turn = TURN) -> str:
    """Turns are in flight at a unified worker, in whatever phase: its decode side counts their tokens."""
    decodes = tuple(
        d(worker.worker.worker_id, load=worker.load, turns=worker.inflight_turns, tokens=worker.inflight_tokens)
        for worker in workers
    )
    workers = [msgspec.structs.replace(worker, inflight_tokens=0) for worker in workers]
    fleet = Fleet(tuple(workers), decodes, KV_BYTES, disaggregated=False)
    return REGISTRY[name](PolicyParams()).decide(turn, fleet, 0.0, random.Random(1)).chosen.prefill.worker_id


def test_the_issue_names_every_rival() -> None:
    assert set(REGISTRY) == {
        "cost",
        "round_robin",
        "least_load",
        "power_of_two",
        "sticky",
        "consistent_hash",
        "smg_cache_aware",
        "sglang_cache_aware",
        "sgl_router",
        "dynamo",
        "infera",
        "llm_d",
        "aibrix",
        "mooncake",
        "longest_prefix",
        "umbp_rfc",
    }


def test_least_load_adds_drain_time_and_the_kv_barrier() -> None:
    # p0: 2000 / 2000 = 1 s.  p1: 500 / 2000 + 0.15 * 0.8 / 0.2 = 0.25 + 0.6 = 0.85 s.
    full = Load(queued_uncached_tokens=500, kv_tokens_used=80, kv_tokens_capacity=100)
    assert pick("least_load", [p("p0", load=Load(2000)), p("p1", load=full)])[0] == "p1"
    # At 0.9 the barrier alone is 0.15 * 9 = 1.35 s.
    fuller = Load(queued_uncached_tokens=500, kv_tokens_used=90, kv_tokens_capacity=100)
    assert pick("least_load", [p("p0", load=Load(2000)), p("p1", load=fuller)])[0] == "p0"


def test_least_load_counts_what_it_sent_until_the_next_report() -> None:
    policy, rng = REGISTRY["least_load"](PolicyParams()), random.Random(1)

    def where(first_ms: float) -> str:
        loads = (Load(1000, age_ms=first_ms), Load(5000, age_ms=first_ms))
        fleet = Fleet((p("p0", load=loads[0]), p("p1", load=loads[1])), (d("d0"),), KV_BYTES, disaggregated=True)
        return policy.decide(TURN, fleet, 0.0, rng).chosen.prefill.worker_id

    assert where(100) == "p0"  # 1000 < 5000; now 6400 are on their way to p0
    assert where(200) == "p1"
    assert where(50) == "p0", "a younger report knows what was sent"


def least_loaded(policy: Policy, now_ms: float, *loads: Load, turn: Turn = TURN) -> str:
    fleet = Fleet(tuple(p(f"p{n}", load=load) for n, load in enumerate(loads)), (d("d0"),), KV_BYTES, disaggregated=True)
    return policy.decide(turn, fleet, now_ms, random.Random(1)).chosen.prefill.worker_id


def test_least_load_adds_what_it_sent_to_what_was_reported() -> None:
    policy, turn = REGISTRY["least_load"](PolicyParams()), Turn("thread", 4000, 100)
    assert least_loaded(policy, 0.0, Load(5000), Load(6000), turn=turn) == "p0"
    # 5000 + 4000 against 6000, although bookings know of 5,400: 3,600 of the 4,000 are cached.
    assert least_loaded(policy, 200.0, Load(5400, age_ms=200), Load(6000, age_ms=200), turn=turn) == "p1"
    # 9000 against 10000, until a report says what is left; nothing is taken off before.
    assert least_loaded(policy, 900.0, Load(0, age_ms=900), Load(9000, age_ms=900), turn=turn) == "p0"


def test_least_load_hears_a_report_however_long_ago_it_decided() -> None:
    policy = REGISTRY["least_load"](PolicyParams())
    assert least_loaded(policy, 100.0, Load(1000, age_ms=100), Load(5000, age_ms=100)) == "p0"
    # The report at 1,000 is older now than the one at 0 was then, and knows what was sent.
    assert least_loaded(policy, 1400.0, Load(1000, age_ms=400), Load(5000, age_ms=400)) == "p0"


@pytest.mark.parametrize("name", ["least_load", "infera"])
def test_what_is_kept_of_workers_ends_with_them(name: str) -> None:
    policy, rng = REGISTRY[name](PolicyParams()), random.Random(1)
    for n in range(100):
        fleet = Fleet((p(f"p{n}"),), (d("d0"),), KV_BYTES, disaggregated=True)
        policy.decide(TURN, fleet, float(n), rng)
    kept = next(value for value in vars(policy).values() if isinstance(value, dict))
    assert WorkerKey("d0") in kept
    assert len(kept) <= 10


def test_power_of_two_never_takes_the_busiest_and_spreads() -> None:
    prefills = [p("p0", turns=9), p("p1", turns=1), p("p2", turns=5)]
    chosen = Counter(pick("power_of_two", prefills, seed=seed)[0] for seed in range(300))
    assert chosen["p0"] == 0
    assert chosen["p1"] > 150, "p1 wins whenever it is drawn: two of three pairs"
    assert chosen["p2"] > 50


@pytest.mark.parametrize("name", ["power_of_two", "smg_cache_aware", "sglang_cache_aware"])
def test_decode_is_the_idler_of_two(name: str) -> None:
    assert {pick(name, [p("p0")], [d("d0", turns=2), d("d1", turns=1)], seed=seed)[1] for seed in range(20)} == {"d1"}


def test_consistent_hash_moves_only_the_lost_workers_threads() -> None:
    whole = [p(f"p{i}") for i in range(5)]
    less = [worker for worker in whole if worker.worker.worker_id != "p2"]
    placed = {n: pick("consistent_hash", whole, turn=Turn(f"t{n}", 100))[0] for n in range(300)}
    assert min(Counter(placed.values()).values()) > 30, "roughly even"
    for n, worker in placed.items():
        moved = pick("consistent_hash", less, turn=Turn(f"t{n}", 100))[0]
        assert moved == worker if worker != "p2" else moved != "p2"


def test_smg_takes_the_highest_overlap_then_the_lower_load_then_the_last() -> None:
    l1, l2 = (6000, Tier.L1), (6016, Tier.L2)
    assert pick("smg_cache_aware", [p("p0", l1, turns=3), p("p1", l2, turns=30)])[0] == "p1"
    assert pick("smg_cache_aware", [p("p0", l1, turns=3), p("p1", l1, turns=2)])[0] == "p1"
    assert pick("smg_cache_aware", [p("p0", l1, turns=2), p("p1", l1, turns=3)])[0] == "p0"
    assert pick("smg_cache_aware", [p("p0", l1), p("p1", l1)])[0] == "p1"


def test_smg_falls_back_to_the_first_shortest_queue() -> None:
    assert pick("smg_cache_aware", [p("p0", turns=2), p("p1", turns=1), p("p2", turns=1)])[0] == "p1"
    held = (6000, Tier.L1)
    # 34 - 1 > 32 and 34 > 1.1 * 1: uneven, the cache does not matter.
    assert pick("smg_cache_aware", [p("p0", held, turns=34), p("p1", turns=1)])[0] == "p1"
    assert pick("smg_cache_aware", [p("p0", held, turns=33), p("p1", turns=1)])[0] == "p0"
    # 400 - 364 > 32, but 400 < 1.1 * 364.
    assert pick("smg_cache_aware", [p("p0", held, turns=400), p("p1", turns=364)])[0] == "p0"


def test_sglang_believes_its_own_tree() -> None:
    evicted = p("p0", turns=5, routed=6400)
    holder = p("p1", (6000, Tier.L1), turns=1, routed=0)
    assert pick("sglang_cache_aware", [evicted, holder])[0] == "p0"
    # 1920 of 6400 is 0.3: not more than the threshold.
    assert pick("sglang_cache_aware", [p("p0", turns=5, routed=1920), p("p1", turns=1, routed=0)])[0] == "p1"
    assert pick("sglang_cache_aware", [p("p0", turns=5, routed=1984), p("p1", turns=1, routed=0)])[0] == "p0"
    assert pick("sglang_cache_aware", [p("p0", turns=66, routed=6400), p("p1", turns=1, routed=0)])[0] == "p1"


def test_sglang_looks_away_from_the_cache_where_load_is_uneven() -> None:
    # 64 more is not more than 64; 65 more is, but 200 is not more than 1.5 * 135.
    assert pick("sglang_cache_aware", [p("p0", turns=65, routed=6400), p("p1", turns=1, routed=0)])[0] == "p0"
    assert pick("sglang_cache_aware", [p("p0", turns=150, routed=6400), p("p1", turns=85, routed=0)])[0] == "p1"
    assert pick("sglang_cache_aware", [p("p0", turns=200, routed=6400), p("p1", turns=135, routed=0)])[0] == "p0"


def test_sglang_without_a_record_goes_by_residency() -> None:
    assert pick("sglang_cache_aware", [p("p0", turns=1), p("p1", (3000, Tier.L2), turns=5)])[0] == "p1"


def test_sgl_router_ranks_by_uncached_work() -> None:
    assert pick("sgl_router", [p("p0", (2000, Tier.L1)), p("p1", (6000, Tier.L2))])[0] == "p1"
    # Below 1,024 matched tokens nothing is a hit; power of two goes by pressure.
    assert pick("sgl_router", [p("p0", (1000, Tier.L1), load=Load(500)), p("p1")])[0] == "p1"


def test_sgl_router_lets_pressure_decide_near_ties() -> None:
    best, near, far = (6000, Tier.L1), (5000, Tier.L1), (4900, Tier.L1)
    # E is 400 and 1400, within 1,024; 2000 - 500 > 1,024 and 2000 > 1.5 * 500.
    assert pick("sgl_router", [p("p0", best, load=Load(2000)), p("p1", near, load=Load(500))])[0] == "p1"
    # 1500 - 500 is not more than 1,024.
    assert pick("sgl_router", [p("p0", best, load=Load(1500)), p("p1", near, load=Load(500))])[0] == "p0"
    # E is 1500: 1,100 more than the least.
    assert pick("sgl_router", [p("p0", best, load=Load(9000)), p("p1", far)])[0] == "p0"


def test_sgl_router_wants_half_as_much_again_before_it_calls_a_worker_pressured() -> None:
    best, near = (6000, Tier.L1), (5000, Tier.L1)
    # 2,000 more is more than 1,024, but 10,000 is not more than 1.5 * 8,000.
    assert pick("sgl_router", [p("p0", best, load=Load(10_000)), p("p1", near, load=Load(8000))])[0] == "p0"
    assert pick("sgl_router", [p("p0", best, load=Load(12_500)), p("p1", near, load=Load(8000))])[0] == "p1"


@pytest.mark.parametrize(("workers", "most"), [(6, 6), (100, 8), (161, 9), (400, 20), (1000, 32)])
def test_sgl_router_bounds_its_candidates(workers: int, most: int) -> None:
    assert len(candidates(TURN, [p(f"p{n}", (6000, Tier.L1)) for n in range(workers)])) == most


def test_sgl_router_looks_at_eight_candidates() -> None:
    crowd = [p(f"p{i}", (6300, Tier.L1), load=Load(9000)) for i in range(8)]
    idle = p("p8", (6200, Tier.L1))  # a near tie and idle, but ninth by rank
    assert pick("sgl_router", [*crowd, idle])[0] == "p0"
    assert pick("sgl_router", [*crowd[:7], idle])[0] == "p8"


def test_sgl_router_decodes_where_fewest_wait_then_run() -> None:
    busy, idle = Load(running_requests=9), Load(running_requests=2)
    queued = Load(waiting_requests=1)
    assert pick("sgl_router", [p("p0")], [d("d0", load=busy), d("d1", load=idle)])[1] == "d1"
    assert pick("sgl_router", [p("p0")], [d("d0", load=busy), d("d1", load=queued)])[1] == "d0"


def test_dynamo_credits_tiers() -> None:
    tiers = p("p", (640, Tier.L1), (640, Tier.L2), (640, Tier.L3), (640, Tier.L4))
    assert credit_blocks(tiers.residency) == 10 + 7.5 + 5 + 2.5
    # 100 blocks of prompt. p0: 100 - 60 = 40.  p1: 100 - 0.75 * 80 = 40, and 64 tokens queue: 41.
    assert pick("dynamo", [p("p0", (3840, Tier.L1)), p("p1", (5120, Tier.L2), load=Load(64))])[0] == "p0"
    assert pick("dynamo", [p("p0", (3840, Tier.L1), load=Load(128)), p("p1", (5120, Tier.L2), load=Load(64))])[0] == "p1"


def test_dynamo_owes_nothing_for_more_overlap_than_there_is_work() -> None:
    prefills = [p("p0", (12_800, Tier.L1)), p("p1", (6400, Tier.L1))]
    assert {pick("dynamo", prefills, seed=seed)[0] for seed in range(20)} == {"p0", "p1"}, "both have none to do"


def test_dynamo_decodes_by_active_blocks_alone() -> None:
    decodes = [d("d0", tokens=64_000, resident=6400), d("d1", tokens=63_000)]
    assert pick("dynamo", [p("p0")], decodes)[1] == "d1"


def test_dynamo_adds_both_costs_on_a_unified_worker() -> None:
    # u0: 0 + (64,000 + 6,400) / 64 = 1,100.  u1: 100 + (6,400 + 6,400) / 64 = 300.
    assert pick_unified("dynamo", [p("u0", (6400, Tier.L1), tokens=64_000), p("u1", tokens=6400)]) == "u1"


def test_infera_weighs_missed_blocks_twenty_times() -> None:
    # p0: 20 * 10 missed + 0.  p1: 20 * 0 + 199 active.
    ten_missed, none_missed = (5760, Tier.L1), (6400, Tier.L2)
    assert pick("infera", [p("p0", ten_missed), p("p1", none_missed, tokens=199 * 64)])[0] == "p1"
    assert pick("infera", [p("p0", ten_missed), p("p1", none_missed, tokens=201 * 64)])[0] == "p0"


def test_infera_weighs_a_decode_workers_missed_blocks_twice() -> None:
    # d0: 2 * 100 missed + 0.  d1: 0 + active.
    assert pick("infera", [p("p0")], [d("d0"), d("d1", resident=6400, tokens=199 * 64)])[1] == "d1"
    assert pick("infera", [p("p0")], [d("d0"), d("d1", resident=6400, tokens=201 * 64)])[1] == "d0"


def test_infera_forgets_three_in_a_hundred_with_every_pick() -> None:
    policy, rng = REGISTRY["infera"](PolicyParams()), random.Random(1)
    fleet = Fleet((p("p0"), p("p1", tokens=96 * 64)), (d("d0"),), KV_BYTES, disaggregated=True)
    picks = [policy.decide(TURN, fleet, 0.0, rng).chosen.prefill.worker_id for _ in range(2)]
    # 100 for what the first missed, times 0.97 for the decode pick that followed: 97 against 96.
    assert picks == ["p0", "p1"]


def test_infera_charges_a_block_for_a_prompt_of_none() -> None:
    policy, rng = REGISTRY["infera"](PolicyParams()), random.Random(1)
    fleet = Fleet((p("p0"), p("p1")), (d("d0"),), KV_BYTES, disaggregated=True)
    picks = [policy.decide(Turn("t", 10), fleet, 0.0, rng).chosen.prefill.worker_id for _ in range(6)]
    assert picks == [picks[0], picks[1]] * 3
    assert picks[0] != picks[1]


def test_infera_counts_active_blocks_of_a_whole_turn_on_a_unified_worker() -> None:
    # u0: 0 missed + 101 active.  u1: 100 missed + 0.
    held = (6400, Tier.L1)
    assert pick_unified("infera", [p("u0", held, tokens=101 * 64), p("u1")]) == "u1"
    assert pick_unified("infera", [p("u0", held, tokens=99 * 64), p("u1")]) == "u0"


def test_infera_charges_what_a_pick_missed() -> None:
    policy, rng = REGISTRY["infera"](PolicyParams()), random.Random(1)
    fleet = Fleet((p("p0"), p("p1", tokens=64)), (d("d0"),), KV_BYTES, disaggregated=True)
    picks = [policy.decide(TURN, fleet, 0.0, rng).chosen.prefill.worker_id for _ in range(4)]
    # Cost beyond the common 2,000: 0 against 1; then 100 against 1; then 97 against 101; then 0.97 * 97 + 100 against 98.
    assert picks == ["p0", "p1", "p0", "p1"]


def test_llm_d_scores() -> None:
    residency = p("p", (3200, Tier.L1), (1600, Tier.L2), (800, Tier.L3), (400, Tier.L4)).residency
    assert prefix_score(TURN, residency) == pytest.approx((3200 + 0.8 * 1600 + 800 + 400) / 6400)
    waiting = [p("a", load=Load(waiting_requests=n)) for n in (0, 1, 4)]
    assert queue_scores(waiting) == {0: 1.0, 1: 0.75, 4: 0.0}
    assert queue_scores(waiting[:1]) == {0: 1.0}


def test_llm_d_trades_prefix_against_queue() -> None:
    # p0: 2 * 0.6 + 0 = 1.2.  p1: 2 * 0 + 1 = 1.
    queued = Load(waiting_requests=5)
    assert pick("llm_d", [p("p0", (3840, Tier.L1), load=queued), p("p1")])[0] == "p0"
    # p0: 2 * 0.8 * 0.6 = 0.96.
    assert pick("llm_d", [p("p0", (3840, Tier.L2), load=queued), p("p1")])[0] == "p1"


def test_llm_d_weighs_a_decode_workers_prefix_twice_its_queue() -> None:
    # d0: 0 + 1.  d1: 2 * held + 0.
    queued = Load(waiting_requests=3)
    assert pick("llm_d", [p("p0")], [d("d0"), d("d1", load=queued, resident=3264)])[1] == "d1"
    assert pick("llm_d", [p("p0")], [d("d0"), d("d1", load=queued, resident=3136)])[1] == "d0"


def test_llm_d_counts_kv_use_on_a_unified_worker() -> None:
    # u0: 2 * 0.4 + 1 + (1 - 0.9) = 1.9.  u1: 0 + 1 + 1 = 2.
    full = Load(kv_tokens_used=90, kv_tokens_capacity=100)
    assert pick_unified("llm_d", [p("u0", (2560, Tier.L1), load=full), p("u1", load=Load(kv_tokens_capacity=100))]) == "u1"


def test_aibrix_lets_a_match_of_a_few_percent_outweigh_all_load() -> None:
    assert match_percent(TURN, p("p0", routed=6399)) == 99
    # p0: (100 - 11) * 0.1 + 1 = 9.9.  p1: 10 + 0.
    assert pick("aibrix", [p("p0", turns=50, routed=704), p("p1", routed=0)])[0] == "p0"
    # p0: (100 - 9) * 0.1 + 1 = 10.1.
    assert pick("aibrix", [p("p0", turns=50, routed=576), p("p1", routed=0)])[0] == "p1"


def test_aibrix_filters_busy_workers_of_a_unified_pool() -> None:
    # 17 - 0 > 16: the least busy.
    assert pick_unified("aibrix", [p("u0", turns=17, routed=6400), p("u1", routed=0)]) == "u1"
    assert pick_unified("aibrix", [p("u0", turns=16, routed=6400), p("u1", routed=0)]) == "u0"
    # 0 0 0 0 0 12: mean 2, sigma of a sample 4.90, limit 11.8: u5 is too busy for its match.
    idle = [p(f"u{i}", routed=64 * i) for i in range(5)]
    assert pick_unified("aibrix", [*idle, p("u5", turns=12, routed=6400)]) == "u4"
    # 0 0 0 0 3 12: mean 2.5, sigma 4.81, limit 12.1.
    some = [*idle[:4], p("u4", turns=3, routed=64)]
    assert pick_unified("aibrix", [*some, p("u5", turns=12, routed=6400)]) == "u5"
    assert pick_unified("aibrix", [p("u0", turns=5, routed=6400)]) == "u0"


def test_aibrix_decodes_by_load_over_free_kv() -> None:
    assert throughput(d("d", load=Load(running_requests=10))) == pytest.approx(1000 * 10 / 20)
    # Both run 10: load 1 + 0 each; d0 has 20 % free of at most 50 %.
    fuller = Load(running_requests=10, kv_tokens_used=80, kv_tokens_capacity=100)
    freer = Load(running_requests=10, kv_tokens_used=50, kv_tokens_capacity=100)
    assert pick("aibrix", [p("p0")], [d("d0", load=fuller, turns=10), d("d1", load=freer, turns=10)])[1] == "d1"


def test_aibrix_prefers_the_decode_worker_that_makes_more_tokens() -> None:
    # d0: 5 / 10 + 1 - 333 / 500.  d1: 10 / 10 + 1 - 500 / 500: what it makes outweighs neither turn.
    slow, fast = Load(running_requests=5), Load(running_requests=10)
    assert pick("aibrix", [p("p0")], [d("d0", load=slow, turns=5), d("d1", load=fast, turns=10)])[1] == "d0"
    # d0: 9 / 10 + 1 - 333 / 500 = 1.23.  d1: 1 + 0.
    assert pick("aibrix", [p("p0")], [d("d0", load=slow, turns=9), d("d1", load=fast, turns=10)])[1] == "d1"


def test_aibrix_counts_a_full_decode_worker_as_a_thousandth_free() -> None:
    # 0.1 of 100 %: its load counts a thousandfold, and still it is not infinite.
    full = Load(running_requests=10, kv_tokens_used=100, kv_tokens_capacity=100)
    free = Load(running_requests=10, kv_tokens_capacity=100)
    assert pick("aibrix", [p("p0")], [d("d0", load=full, turns=1), d("d1", load=free, turns=500)])[1] == "d1"
    assert pick("aibrix", [p("p0")], [d("d0", load=full), d("d1", load=free, turns=1)])[1] == "d0", "0 / 1 + 1 - 1 is 0"


def test_mooncake_estimates_ttft() -> None:
    # 1000 * 0.02 queued + 10 + 2400 * 0.02.
    own = p("p0", (4000, Tier.L1), load=Load(1000))
    assert ttft_ms(TURN, own, 6000, KV_BYTES) == pytest.approx(20 + 10 + 48)
    # With a pool: 1 + 2000 * 1000 / 1e6 transfer, and 400 tokens to compute.
    pulls = p("p0", (4000, Tier.L1), load=Load(1000), restore={Tier.L3: LINK})
    assert ttft_ms(TURN, pulls, 6000, KV_BYTES) == pytest.approx(3 + 20 + 10 + 8)


def test_mooncake_pulls_nothing_where_its_own_match_is_the_best() -> None:
    holder = p("p0", (6000, Tier.L1), restore={Tier.L3: LINK})
    assert ttft_ms(TURN, holder, 6000, KV_BYTES) == pytest.approx(10 + 8), "no latency of a link"


def test_mooncake_moves_the_cache_instead_of_queueing() -> None:
    # p0: 5,000 queued: 100 + 10 + 8.  p1 without a pool: 10 + 128; with one: 1 + 6 + 10 + 8.
    holder = p("p0", (6000, Tier.L1), load=Load(5000))
    assert pick("mooncake", [holder, p("p1")])[0] == "p0"
    assert pick("mooncake", [holder, p("p1", restore={Tier.L3: LINK})])[0] == "p1"


def test_mooncake_decodes_at_the_least_time_between_tokens() -> None:
    decodes = [d("d0", load=Load(running_requests=3, waiting_requests=2)), d("d1", load=Load(running_requests=4))]
    assert pick("mooncake", [p("p0")], decodes)[1] == "d1"
    # Both run as many as they take: 14 and 13 turns once this one has joined.
    full = [Load(running_requests=8, waiting_requests=n, max_running_requests=8) for n in (5, 4)]
    assert pick("mooncake", [p("p0")], [d("d0", load=full[0]), d("d1", load=full[1], turns=99)])[1] == "d1"


def test_umbp_rfc_has_four_terms() -> None:
    load = Load(queued_uncached_tokens=300, kv_tokens_used=25, kv_tokens_capacity=100)
    prefill = p("p0", (2000, Tier.L1), (1000, Tier.L2), load=load)
    # 2000 + 0.7 * 1000 - 300 - 0.25 * 6400 - (1 + 1000 * 1000 / 1e6) ms / 0.02 ms per token
    assert umbp_score(TURN, prefill, KV_BYTES) == pytest.approx(2000 + 700 - 300 - 1600 - 100)
    assert pick("umbp_rfc", [prefill, p("p1", (800, Tier.L1))])[0] == "p1"
    deep = p("p0", (1000, Tier.L3), (500, Tier.L4), restore={Tier.L3: LINK, Tier.L4: LINK})
    # 700 + 100 - the slower of two legs, 1 + 1 ms, at 0.02 ms a token.
    assert umbp_score(TURN, deep, KV_BYTES) == pytest.approx(700 + 100 - 100)
