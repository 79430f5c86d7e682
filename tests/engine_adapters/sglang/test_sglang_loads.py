"""Load of three generations of SGLang."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.base import AdapterError, LoadReport
from engine_adapters.counts import MAX_COUNT
from engine_adapters.sglang import loads

DATA = Path(__file__).parents[2] / "data" / "engines"


def test_a_prefill_worker_tells_its_counters_and_its_link() -> None:
    (report,) = loads.from_loads((DATA / "sglang_pd_prefill_loads.json").read_bytes(), "u")
    assert (report.prefill_uncached_tokens_total, report.prefill_busy_us_total) == (1713, 381027)
    assert (report.kv_tokens_capacity, report.max_running_requests, report.waiting_uncached_tokens) == (32768, 16, 0)
    assert report.transfer_bytes_per_ms == pytest.approx(0.14191593089668506 * 2**30 / 1000)
    assert report.transfer_latency_ms == pytest.approx(1.2902389998998842)


def test_nothing_sent_yet_is_no_rate() -> None:
    (report,) = loads.from_loads((DATA / "sglang_pd_decode_loads.json").read_bytes(), "u")
    assert (report.transfer_bytes_per_ms, report.transfer_latency_ms) == (None, None)


def test_every_rank_reports() -> None:
    raw = b'{"loads":[{"dp_rank":0,"num_running_reqs":3},{"dp_rank":1,"num_waiting_reqs":2,"num_used_tokens":9,"future":{}}]}'
    assert loads.from_loads(raw, "u") == (LoadReport(0, 3, 0), LoadReport(1, 0, 2, kv_tokens_used=9))


def test_get_load_counts_waiting_among_all() -> None:
    raw = b'[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":700}]'
    assert loads.from_get_load(raw, "u") == (LoadReport(0, 3, 2, kv_tokens_used=700),)


def test_metrics_are_the_last_resort() -> None:
    (report,) = loads.from_metrics((DATA / "sglang_pd_prefill_metrics.txt").read_text(), "u")
    assert (report.running_requests, report.waiting_requests, report.kv_tokens_capacity) == (0, 0, 32768)


def test_metrics_of_several_ranks_add_up_the_queues() -> None:
    text = "\n".join(
        [
            'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2.0',
            'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 2.0',
            'sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 1.0',
            'sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 3.0',
            'sglang:num_decode_transfer_queue_reqs{dp_rank="0",tp_rank="0"} 4.0',
        ]
    )
    assert loads.from_metrics(text, "u") == (LoadReport(0, 2, 7), LoadReport(1, 1, 0))


def test_metrics_without_the_gauges_report_nothing() -> None:
    assert loads.from_metrics("# nothing here\n", "u") == ()


def test_what_is_no_load_is_refused() -> None:
    with pytest.raises(AdapterError, match="http://u/v1/loads"):
        loads.from_loads(b"[]", "http://u/v1/loads")


ABSURD = [10**400, 10**30, -9, -(10**400), 1e308, 0, 5]
FIELDS = ["num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "max_total_num_tokens"]
COUNTERS = ["max_running_requests", "total_prefill_uncached_tokens", "total_prefill_busy_us", "num_reqs", "num_tokens"]


def check(report: LoadReport) -> None:
    """All numbers are such that nothing behind them can overflow."""
    assert 0 <= report.dp_rank < 1024
    for name in report.__struct_fields__:
        value = getattr(report, name)
        assert value is None or 0 <= value <= MAX_COUNT, name


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["dp_rank", *FIELDS, *COUNTERS]), st.sampled_from([n for n in ABSURD if n != 1e308])))
def test_absurd_numbers_are_bounded(numbers: dict[str, Any]) -> None:
    for report in loads.from_loads(json.dumps({"loads": [numbers]}).encode(), "u"):
        check(report)
    for report in loads.from_get_load(json.dumps([numbers]).encode(), "u"):
        check(report)


@given(st.sampled_from([*ABSURD, 1e-308]), st.sampled_from(ABSURD))
def test_an_absurd_link_is_none(speed: Any, latency: Any) -> None:
    link = {"kv_transfer_speed_gb_s": speed, "kv_transfer_latency_ms": latency}
    raw = json.dumps({"loads": [{"disaggregation": link}]}).encode()
    try:
        (report,) = loads.from_loads(raw, "u")
    except AdapterError:
        assert abs(speed) > 1e308 or abs(latency) > 1e308  # no JSON number for a float
        return
    check(report)
    assert (report.transfer_latency_ms is not None) == (latency == 5)


@pytest.mark.parametrize("rank", [-9, -1, 1024, 10**6, 10**400])
def test_ranks_that_cannot_be_are_left_out(rank: int) -> None:
    raw = json.dumps({"loads": [{"dp_rank": rank}, {"dp_rank": 1023}]}).encode()
    assert [report.dp_rank for report in loads.from_loads(raw, "u")] == [1023]
    assert loads.from_get_load(json.dumps([{"dp_rank": rank}]).encode(), "u") == ()
    assert loads.from_metrics(f'sglang:num_running_reqs{{dp_rank="{rank}"}} 2.0', "u") == ()


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e308", "-5", "1" * 400])
def test_absurd_gauges_are_bounded(number: str) -> None:
    names = ("num_running_reqs", "num_queue_reqs", "num_decode_transfer_queue_reqs", "num_used_tokens", "max_total_num_tokens")
    lines = [f'sglang:{name}{{dp_rank="0"}} {number}' for name in names]
    for text in ("\n".join(lines), "\n".join(['sglang:num_running_reqs{dp_rank="0"} 2.0', *lines[1:]])):
        for report in loads.from_metrics(text, "u"):
            check(report)


@pytest.mark.parametrize("label", ["x", "\u00b2", "-1", "1.0", "9" * 5000])
def test_a_label_that_is_no_rank_is_left_out(label: str) -> None:
    assert loads.from_metrics(f'sglang:num_running_reqs{{dp_rank="{label}"}} 2.0', "u") == ()


def test_a_counter_that_cannot_be_is_not_told() -> None:
    raw = b'{"loads":[{"total_prefill_uncached_tokens":-1,"total_prefill_busy_us":1%b}]}' % (b"0" * 400)
    (report,) = loads.from_loads(raw, "u")
    assert (report.prefill_uncached_tokens_total, report.prefill_busy_us_total) == (None, None)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(AdapterError, match="u is not the JSON"):
        loads.from_loads(b'{"future":' + b"[" * 100_000, "u")


@given(st.data())
def test_changed_metrics_are_read_or_refused(data: st.DataObject) -> None:
    text = 'sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 2.0 1700000000\n# TYPE sglang:num_running_reqs gauge\n'
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(24, len(text)))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 5)) :]
    with contextlib.suppress(AdapterError):
        for report in loads.from_metrics(text, "u"):
            check(report)
