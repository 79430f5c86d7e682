"""The log hears of predictions that drift once, and once when they no longer do."""

from __future__ import annotations

from typing import Any

from prometheus_client.core import Metric
from structlog.testing import capture_logs

from router.config.tree import Config
from router.fleet.calibration_metrics import CalibrationCollector
from router.fleet.drift import DriftWatch
from router.fleet.fleet import Fleet
from router.fleet.rates import LegTerm


def fleet() -> Fleet:
    pool: dict[str, Any] = {"name": "main", "unified": [{"name": "u0", "url": "http://127.0.0.1:9101"}]}
    return Fleet(Config.model_validate({"pools": [pool]}))


def sample(family: str, known: Fleet, term: str) -> float:
    families: dict[str, Metric] = {each.name: each for each in CalibrationCollector(known).collect()}
    return next(each.value for each in families[family].samples if each.labels["term"] == term)


def test_a_change_is_told_once_and_its_end_too() -> None:
    known = fleet()
    watch, rates = DriftWatch(known), known.find("u0")[1].rates
    with capture_logs() as told:
        for predicted_ms in (95.0, 50.0, 50.0, 50.0, 50.0):
            for _ in range(50):
                rates.legs[LegTerm.PREFILL].observe(predicted_ms, 100.0)
            watch.look()
            watch.look()
            drifting = rates.legs[LegTerm.PREFILL].drifting
            assert sample("loadback_prediction_drifting", known, "prefill") == float(drifting)
    assert [(each["event"], each["worker"], each["term"]) for each in told] == [
        ("predictions_drift", "u0", "prefill"),
        ("predictions_settled", "u0", "prefill"),
    ]
    assert sample("loadback_prediction_error", known, "prefill") == 0.5


def test_terms_that_were_never_timed_are_not_told_of() -> None:
    known = fleet()
    families = {each.name: each for each in CalibrationCollector(known).collect()}
    assert families["loadback_prediction_error"].samples == []
    tiers = {each.labels["tier"] for each in families["loadback_restore_bytes_per_second"].samples}
    assert tiers == {"L2", "L3", "L4"}, "priors are shown as well"


def test_a_worker_that_is_removed_drifts_no_more() -> None:
    known = fleet()
    watch, worker = DriftWatch(known), known.find("u0")[1]
    for predicted_ms in (95.0, 50.0):
        for _ in range(50):
            worker.rates.observe_ttft(predicted_ms, 100.0)
    with capture_logs() as told:
        watch.look()
        known.pools["main"].remove("u0")
        watch.look()
    assert [each["event"] for each in told] == ["predictions_drift"]
