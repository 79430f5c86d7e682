"""Each term by hand."""

from __future__ import annotations

import math

import pytest

from costmodel.hardware import HardwarePrior
from costmodel.terms import (
    admit_ms,
    compute_ms,
    decode_ms,
    exposed_ms,
    fetch_ms,
    itl_ms,
    link_ms,
    live_probability,
    prefill_pressure_ms,
    queue_ms,
    transfer_ms,
)
from costmodel.values import Decode, DecodeRates, Link, Load, PrefillRates, Residency, Run, Tier, WorkerKey

HOST = Link(1.0, 100.0)
POOL = Link(2.0, 50.0)
RATES = DecodeRates(10.0, 1.0)


def test_queue_drains_at_the_measured_throughput() -> None:
    load = Load(queued_uncached_tokens=1000)
    assert queue_ms(load, PrefillRates(5.0, 0.1)) == pytest.approx(100)
    assert queue_ms(load, PrefillRates(5.0, 0.1, queue_ms_per_token=0.2)) == pytest.approx(200)


def test_turns_that_wait_together_share_a_forwards_fixed_cost() -> None:
    rates = PrefillRates(5.0, 0.1)
    assert queue_ms(Load(queued_uncached_tokens=50, queued_ms=10.0, queued_turns=1), rates) == 10
    assert queue_ms(Load(queued_uncached_tokens=150, queued_ms=30.0, queued_turns=3), rates) == 20, (
        "one forward takes all three"
    )
    assert queue_ms(Load(queued_uncached_tokens=20_000, queued_ms=2015.0, queued_turns=3), rates) == 2015, "one each"
    assert queue_ms(Load(queued_uncached_tokens=0, queued_ms=1.0, queued_turns=9), rates) == 0


def test_a_link_is_shared_by_its_flows() -> None:
    assert link_ms(HOST, 1000) == pytest.approx(11)
    assert link_ms(Link(1.0, 100.0, active_flows=3), 1000) == pytest.approx(41)


def test_fetch_is_nothing_for_l1_and_serial_within_a_tier() -> None:
    runs = (Run(0, 50, Tier.L1), Run(50, 10, Tier.L2), Run(60, 10, Tier.L1), Run(70, 10, Tier.L2))
    assert fetch_ms(runs, 50, {Tier.L2: HOST}, 10.0) == 0
    assert fetch_ms(runs, 60, {Tier.L2: HOST}, 10.0) == pytest.approx(1 + 1)
    assert fetch_ms(runs, 80, {Tier.L2: HOST}, 10.0) == pytest.approx(2 + 2)
    apart = (Run(0, 10, Tier.L3), Run(10, 10, Tier.L1), Run(20, 10, Tier.L3))
    assert fetch_ms(apart, 30, {Tier.L3: POOL}, 10.0) == pytest.approx(4 + 4)


def test_fetch_legs_are_pipelined_and_pass_the_host_link() -> None:
    runs = (Run(0, 100, Tier.L2), Run(100, 100, Tier.L3))
    both = {Tier.L2: HOST, Tier.L3: POOL}
    assert fetch_ms(runs, 200, both, 10.0) == pytest.approx(max(1 + 10 + 1 + 10, 2 + 20))
    slow_host = {Tier.L2: Link(1.0, 10.0), Tier.L3: POOL}
    assert fetch_ms(runs, 200, slow_host, 10.0) == pytest.approx(2 * (1 + 100))
    assert fetch_ms((Run(0, 100, Tier.L3),), 100, {Tier.L3: POOL}, 10.0) == pytest.approx(2 + 20)


def test_fetch_stops_at_the_cut_and_needs_a_link() -> None:
    runs = (Run(0, 100, Tier.L2), Run(100, 100, Tier.L4))
    assert fetch_ms(runs, 40, {Tier.L2: HOST}, 10.0) == pytest.approx(1 + 4)
    assert math.isinf(fetch_ms(runs, 101, {Tier.L2: HOST}, 10.0))


def test_compute_is_quadratic_in_what_is_attended_to() -> None:
    rates = PrefillRates(7.0, 0.5, 0.001)
    assert compute_ms(rates, 1000, 400) == pytest.approx(7 + 0.5 * 600 + 0.001 * (1000**2 - 400**2))


def test_a_cached_token_costs_what_its_backend_takes_for_it() -> None:
    rates = PrefillRates(7.0, 0.5, 0.001, ms_per_cached_token=0.2)
    assert compute_ms(rates, 1000, 400) - compute_ms(PrefillRates(7.0, 0.5, 0.001), 1000, 400) == pytest.approx(0.2 * 400)


def test_exposed_is_what_neither_queue_nor_overlap_hides() -> None:
    assert exposed_ms({Tier.L3: 100}, 30, 50, 0.0) == 70, "a queue hides reads from the pool"
    assert exposed_ms({Tier.L3: 10}, 30, 50, 0.0) == 0
    assert exposed_ms({Tier.L2: 100}, 30, 50, 0.0) == 100, "a load-back begins with the forward"
    assert exposed_ms({Tier.L2: 100}, 30, 50, 1.0) == 50
    assert exposed_ms({Tier.L2: 60, Tier.L3: 40, "n1": 70}, 30, 50, 1.0) == 40 + 10


def test_a_source_node_has_a_link_of_its_own() -> None:
    runs = (Run(0, 100, Tier.L3, "near"), Run(100, 100, Tier.L3, "far"))
    near = {"near": Link(0.0, 1000.0)}
    assert fetch_ms(runs, 200, {Tier.L3: POOL}, 10.0, near) == pytest.approx(2 + 20)
    assert fetch_ms(runs, 100, {Tier.L3: POOL}, 10.0, near) == pytest.approx(1)


def test_transfer_is_of_what_decode_lacks() -> None:
    decode = Decode(WorkerKey("d"), Load(), RATES, HOST, resident_tokens=600)
    assert transfer_ms(decode, 1000, 10.0) == pytest.approx(1 + 40)
    assert transfer_ms(decode, 600, 10.0) == transfer_ms(decode, 100, 10.0) == 0


def test_decode_at_the_batch_it_joins() -> None:
    load = Load(running_requests=3, waiting_requests=1)
    assert itl_ms(load, RATES) == pytest.approx(15)
    assert decode_ms(load, RATES, 10) == pytest.approx(150)


def test_decode_waits_for_a_slot() -> None:
    full = Load(running_requests=4, waiting_requests=1, max_running_requests=4)
    assert itl_ms(full, RATES) == pytest.approx(14), "the batch cannot grow beyond its slots"
    assert admit_ms(full, RATES, 0, 10, 0.9) == pytest.approx(140 * 2 / 4)
    assert admit_ms(full, DecodeRates(10.0, 1.0, lifetime_ms=1000.0), 0, 10, 0.9) == pytest.approx(1000 * 2 / 4)
    assert decode_ms(full, RATES, 10) == pytest.approx(140)
    free = Load(running_requests=3, max_running_requests=4)
    assert admit_ms(free, RATES, 0, 10, 0.9) == 0


def test_decode_waits_for_room() -> None:
    load = Load(kv_tokens_used=800, kv_tokens_capacity=1000)
    assert admit_ms(load, RATES, 100, 10, 0.9) == 0
    assert admit_ms(load, RATES, 300, 10, 0.9) == pytest.approx(200 / 900 * 10 * 11)
    assert admit_ms(load, RATES, 300, 10, 0.0) == 0, "switched off"
    slots = Load(running_requests=7, max_running_requests=4, kv_tokens_used=800, kv_tokens_capacity=1000)
    assert admit_ms(slots, DecodeRates(10.0, 1.0, 1000.0), 300, 10, 0.9) == 1000 * 4 / 4, "the longer of the two waits"
    assert admit_ms(Load(kv_tokens_used=800), RATES, 10**6, 10, 0.9) == 0, "capacity unknown"


def test_pressure_is_for_the_overflow_only() -> None:
    load = Load(kv_tokens_used=800, kv_tokens_capacity=1000)
    assert prefill_pressure_ms(load, PrefillRates(1.0, 0.5), 100, 0.9) == 0
    assert prefill_pressure_ms(load, PrefillRates(1.0, 0.5), 300, 0.9) == pytest.approx(200 * 0.5)
    assert prefill_pressure_ms(Load(kv_tokens_used=800), PrefillRates(1.0, 0.5), 300, 0.9) == 0, "capacity unknown"


def test_belief_halves_with_age() -> None:
    assert live_probability(0, 100) == 1
    assert live_probability(200, 100) == pytest.approx(0.25)
    assert live_probability(1e9, 0) == 1


def test_hardware_prior_agrees_with_the_published_restore_times() -> None:
    """50k tokens of Kimi K2 in bf16: 69 ms over the host link, 84 ms by RDMA."""
    prior = HardwarePrior()
    size_bytes = 50_000 * prior.kv_bytes_per_token
    assert link_ms(prior.host, size_bytes) == pytest.approx(69, rel=0.01)
    assert link_ms(prior.transfer, size_bytes) == pytest.approx(85, rel=0.01)
    assert prior.restore()[Tier.L3] == prior.pool_remote


def test_a_decode_worker_is_credited_with_what_lies_on_its_device_alone() -> None:
    runs = (Run(0, 100, Tier.L1), Run(100, 50, Tier.L2), Run(150, 50, Tier.L1))
    assert (Residency(runs).tokens, Residency(runs).device_tokens) == (200, 100)
    assert Residency(runs[1:]).device_tokens == 0
    assert Residency().device_tokens == 0
