"""Load of three generations of SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_adapters.base import AdapterError, LoadReport
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
