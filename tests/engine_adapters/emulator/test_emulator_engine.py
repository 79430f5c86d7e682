from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.values import Tier
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.model.page_events import PagesStored, as_block_event
from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.model.request import (
    Allocated,
    Cached,
    EngineRequest,
    Finished,
    FinishReason,
    Outcome,
    Progress,
    Transferred,
)
from kvtier.hashing.sglang import event_ids
from kvtier.index.events import BlocksStored

PAGE = 4
PARAMS = EngineParams(
    page_tokens=PAGE,
    kv_tokens=400,
    max_running=4,
    chunk_tokens=64,
    context_tokens=400,
    kv_bytes_per_token=1_000,
    prefill_base_ms=10.0,
    prefill_ms_per_token=1.0,
    prefill_ms_per_token2=0.0,
    decode_base_ms=5.0,
    decode_ms_per_running=1.0,
    transfer_bytes_per_ms=1_000.0,
    transfer_base_ms=2.0,
    load_back_bytes_per_ms=1_000.0,
    host_write_bytes_per_ms=1_000.0,
    load_back_base_ms=0.0,
    decode_reserved_tokens=8,
)


def params(**changes: object) -> EngineParams:
    return msgspec.structs.replace(PARAMS, **changes)


def ask(rid: str, prompt: int, output: int = 3, *, start: int = 0, **options: object) -> EngineRequest:
    """Prompts share their tokens from `start` on; the reply's tokens are the rid's own."""
    tokens = [*range(start, start + prompt), *(sum(rid.encode()) * 1_000 + index for index in range(output - 1))]
    return EngineRequest(
        rid=rid,
        prompt_tokens=prompt,
        output_tokens=output,
        max_new_tokens=output,
        pages=event_ids(tokens, PAGE),
        tokens=tokens,
        **options,  # type: ignore[arg-type]
    )


def drain(model: EngineModel, until_ms: float = 1e9) -> list[Outcome]:
    """Everything that happens up to a time, in virtual time."""
    outcomes = model.advance(0.0)
    while (due := model.next_event_ms()) is not None and due <= until_ms:
        outcomes += model.advance(due)
    return outcomes


def finished(outcomes: list[Outcome]) -> dict[str, Finished]:
    return {outcome.rid: outcome for outcome in outcomes if isinstance(outcome, Finished)}


def test_one_request_takes_its_prefill_and_its_decode_steps() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 20, 3), 100.0)
    times = [(outcome.at_ms, outcome.output_tokens) for outcome in drain(model) if isinstance(outcome, Progress)]
    assert times == [(130.0, 1), (136.0, 2), (142.0, 3)]
    assert model.idle
    assert model.next_event_ms() is None


def test_the_same_prompt_again_computes_only_what_is_missing() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 21, 2), 0.0)
    drain(model)
    model.submit(ask("b", 21, 1), 1_000.0)
    done = finished(drain(model))["b"]
    assert done.cached == Cached(device=20)
    assert done.at_ms == 1_000.0 + 10.0 + 1.0
    assert model.counters.prefill_tokens == 22


def test_at_least_one_token_is_computed() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 20, 1), 0.0)
    drain(model)
    model.submit(ask("b", 20, 1), 1_000.0)
    assert finished(drain(model))["b"].cached == Cached(device=16)


def test_the_reply_is_cached_for_the_next_turn() -> None:
    model = EngineModel(PARAMS)
    first = ask("a", 20, 9)
    model.submit(first, 0.0)
    drain(model)
    assert model.cache.match(first.pages).device_pages == 7  # 28 of 20 + 9 tokens: the last one has no KV


def test_long_prompts_are_computed_in_chunks_of_whole_pages_and_cached_as_they_go() -> None:
    model = EngineModel(PARAMS)
    request = ask("a", 150, 1)
    model.submit(request, 0.0)
    model.advance(74.0)
    assert model.cache.match(request.pages).device_pages == 16
    assert finished(drain(model))["a"].at_ms == 3 * 10.0 + 150.0


def test_prefill_goes_before_decode_and_first_come_is_first_served() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 20, 5), 0.0)
    model.advance(31.0)  # a decodes
    model.submit(ask("b", 20, 2, start=100), 31.0)
    model.submit(ask("c", 20, 2, start=200), 31.0)
    firsts = [outcome.rid for outcome in drain(model) if isinstance(outcome, Progress) and outcome.output_tokens == 1]
    assert firsts == ["b", "c"]
    assert model.counters.decode_running_sum > model.counters.decode_steps  # they decoded together


def test_no_more_requests_run_than_allowed() -> None:
    model = EngineModel(params(max_running=2))
    for number in range(5):
        model.submit(ask(f"r{number}", 8, 4, start=number * 100), 0.0)
    seen = []
    while (due := model.next_event_ms()) is not None:
        model.advance(due)
        seen.append(model.load().running)
    assert max(seen) == 2
    assert model.counters.finished == 5


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="400 prompt tokens"):
        EngineModel(PARAMS).submit(ask("a", 400, 1), 0.0)


def test_a_rid_can_be_used_once_at_a_time() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 8, 1), 0.0)
    with pytest.raises(ValueError, match="in use"):
        model.submit(ask("a", 8, 1), 1.0)


def test_old_prompts_are_evicted_for_new_ones() -> None:
    model = EngineModel(PARAMS)
    for number in range(8):
        model.submit(ask(f"r{number}", 100, 1, start=number * 1_000), number * 1_000.0)
        drain(model)
    assert model.cache.evicted_pages > 0
    assert model.cache.match(ask("x", 100, 1, start=0).pages).device_pages == 0
    assert model.cache.match(ask("x", 100, 1, start=7_000).pages).device_pages == 25


def test_a_decode_that_runs_out_of_pages_retracts_one_and_loses_none() -> None:
    model = EngineModel(params(kv_tokens=80, admission_output_ratio=0.0))
    for number in range(3):
        model.submit(ask(f"r{number}", 20, 30, start=number * 100), 0.0)
    done = finished(drain(model))
    assert model.counters.retractions > 0
    assert {rid: one.output_tokens for rid, one in done.items()} == {"r0": 30, "r1": 30, "r2": 30}
    assert all(one.reason is FinishReason.DONE for one in done.values())


@pytest.mark.parametrize(("abort_ms", "reason"), [(5.0, FinishReason.ABORT), (31.0, FinishReason.ABORT)])
def test_an_abort_ends_a_request_and_frees_its_pages(abort_ms: float, reason: FinishReason) -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 20, 50), 0.0)
    model.advance(abort_ms)
    assert model.abort("a", abort_ms)
    assert finished(model.advance(abort_ms))["a"].reason is reason
    assert (model.cache.private_pages, model.cache.locked_pages) == (0, 0)
    drain(model)
    assert model.idle


def test_an_abort_in_the_queue_is_told_apart() -> None:
    model = EngineModel(params(max_running=1))
    model.submit(ask("a", 20, 5), 0.0)
    model.submit(ask("b", 20, 5, start=100), 0.0)
    model.abort("b", 1.0)
    assert finished(model.advance(1.0))["b"].reason is FinishReason.ABORT_QUEUED
    assert not model.abort("b", 2.0)


def test_the_time_of_an_aborted_prefill_is_still_spent() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 50, 1), 0.0)
    model.abort("a", 1.0)
    model.submit(ask("b", 8, 1, start=100), 1.0)
    assert finished(drain(model))["b"].at_ms == 60.0 + 18.0


def test_only_an_idle_engine_can_be_flushed() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 8, 2), 0.0)
    assert not model.flush()
    drain(model)
    assert model.flush()
    assert model.cache.device_pages == 0


def test_host_tier_keeps_what_the_device_evicts_and_brings_it_back() -> None:
    model = EngineModel(params(host_kv_tokens=4_000))
    first = ask("a", 101, 1)
    model.submit(first, 0.0)
    drain(model)
    for number in range(1, 5):
        model.submit(ask(f"r{number}", 100, 1, start=number * 1_000), number * 10_000.0)
        drain(model)
    assert model.cache.match(first.pages).host_pages == 25
    model.submit(ask("b", 101, 1), 100_000.0)
    done = finished(drain(model))["b"]
    assert done.cached == Cached(device=0, host=100)
    assert done.at_ms == 100_000.0 + 100.0  # moving 100 tokens at one a ms hides the computation of one
    assert model.counters.loaded_back_tokens == 100


def test_events_tell_stores_tier_by_tier_in_the_routers_words() -> None:
    model = EngineModel(params(host_kv_tokens=4_000))
    request = ask("a", 20, 1)
    model.submit(request, 0.0)
    drain(model)
    events = [event for event in model.take_page_events() if isinstance(event, PagesStored)]
    assert [event.tier for event in events] == [Tier.L1, Tier.L2]
    assert as_block_event(events[0], PAGE) == BlocksStored(tuple(request.pages), None, Tier.L1, PAGE)


def test_events_wait_for_a_prefill_or_an_idle_engine() -> None:
    model = EngineModel(PARAMS)
    model.submit(ask("a", 20, 20), 0.0)
    model.submit(ask("b", 20, 3, start=100), 0.0)
    model.advance(model.next_event_ms() or 0.0)
    assert model.take_page_events()  # both prompts
    while model.stage("b") is Stage.RUNNING:
        model.advance(model.next_event_ms() or 0.0)
    assert not model.take_page_events()  # b's reply is cached, nobody is told yet
    drain(model)
    assert model.take_page_events()


def pd() -> tuple[EngineModel, EngineModel]:
    return EngineModel(params(role=EngineRole.PREFILL)), EngineModel(params(role=EngineRole.DECODE))


def test_a_pair_hands_over_in_order() -> None:
    prefill, decode = pd()
    request = ask("a", 20, 3, paired=True)
    prefill.submit(msgspec.structs.replace(request, output_tokens=1), 0.0)
    assert drain(prefill) == []
    decode.submit(request, 0.0)
    allocated = drain(decode)
    assert allocated == [Allocated("a", 0.0, 0)]
    prefill.pair("a", 5.0, 0)
    sent = [outcome for outcome in drain(prefill) if isinstance(outcome, Transferred)]
    assert sent == [Transferred("a", 5.0 + 30.0 + 22.0, Cached())]
    decode.receive("a", 57.0, sent[0].cached)
    times = [(outcome.at_ms, outcome.output_tokens) for outcome in drain(decode) if isinstance(outcome, Progress)]
    assert times == [(57.0, 1), (63.0, 2), (69.0, 3)]
    assert (prefill.idle, decode.idle) == (True, True)


def test_a_decode_engine_with_a_cache_asks_for_less() -> None:
    prefill = EngineModel(params(role=EngineRole.PREFILL))
    decode = EngineModel(params(role=EngineRole.DECODE, decode_keeps_cache=True))
    for rid in "ab":
        request = ask(rid, 21, 2, paired=True)
        decode.submit(request, 0.0)
        resident = next(one.resident_tokens for one in drain(decode) if isinstance(one, Allocated))
        prefill.submit(msgspec.structs.replace(request, output_tokens=1), 0.0)
        prefill.pair(rid, 0.0, resident)
        drain(prefill)
        decode.receive(rid, 100.0)
        drain(decode)
        assert resident == (0 if rid == "a" else 20)
    assert prefill.counters.transfer_ms == 2.0 + 1.0


def test_a_decode_engine_accepts_what_it_has_room_for() -> None:
    decode = EngineModel(params(role=EngineRole.DECODE, kv_tokens=92))
    for rid in "abc":
        decode.submit(ask(rid, 40, 3, paired=True), 0.0)
    assert [outcome.rid for outcome in drain(decode)] == ["a"]
    assert decode.load().queue(Stage.PREALLOC).requests == 2
    decode.receive("a", 10.0)
    assert "b" in [outcome.rid for outcome in drain(decode) if isinstance(outcome, Allocated)]


def test_a_prefill_without_a_partner_computes_at_once_and_keeps_nothing() -> None:
    prefill = EngineModel(params(role=EngineRole.PREFILL))
    request = ask("a", 20, 1, keep=False)
    prefill.submit(request, 0.0)
    assert finished(drain(prefill))["a"].at_ms == 30.0
    assert prefill.cache.match(request.pages).device_pages == 0


def test_a_late_receive_or_pair_is_ignored() -> None:
    prefill, decode = pd()
    prefill.pair("gone", 0.0)
    decode.receive("gone", 0.0)
    assert (prefill.idle, decode.idle) == (True, True)


@st.composite
def scenario(draw: st.DrawFn) -> list[tuple[float, int, int, int, float | None]]:
    """Requests as (arrival, shared start, prompt, output, abort time or None)."""
    count = draw(st.integers(1, 12))
    return [
        (
            draw(st.floats(0, 300)),
            draw(st.sampled_from([0, 0, 0, 500, 900])),
            draw(st.integers(1, 120)),
            draw(st.integers(1, 25)),
            draw(st.none() | st.floats(0, 600)),
        )
        for _ in range(count)
    ]


@settings(max_examples=50, deadline=None)
@given(scenario(), st.sampled_from([0, 200, 1_000]), st.integers(20, 100))
def test_whatever_comes_everything_ends_and_every_page_is_given_back(
    requests: list[tuple[float, int, int, int, float | None]], host: int, chunk: int
) -> None:
    model = EngineModel(params(kv_tokens=240, host_kv_tokens=host, chunk_tokens=chunk))
    inputs: list[tuple[float, str, EngineRequest | None]] = []
    for number, (arrival, start, prompt, output, abort) in enumerate(requests):
        inputs.append((arrival, f"r{number}", ask(f"r{number}", prompt, output, start=start)))
        if abort is not None:
            inputs.append((max(abort, arrival), f"r{number}", None))
    outcomes: list[Outcome] = []
    for at_ms, rid, request in sorted(inputs, key=lambda one: (one[0], one[2] is None)):
        outcomes += model.advance(at_ms)
        if request is None:
            model.abort(rid, at_ms)
        else:
            model.submit(request, at_ms)
    outcomes += drain(model)
    assert sorted(finished(outcomes)) == sorted(f"r{number}" for number in range(len(requests)))
    assert model.idle
    assert (model.cache.private_pages, model.cache.locked_pages) == (0, 0)
    assert [one.at_ms for one in outcomes] == sorted(one.at_ms for one in outcomes)
    for rid, last in finished(outcomes).items():
        said = [one.output_tokens for one in outcomes if isinstance(one, Progress) and one.rid == rid]
        assert said == list(range(1, last.output_tokens + 1))
