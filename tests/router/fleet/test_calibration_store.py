"""What one gateway has learned of its workers is where the next one starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.values import Tier
from router.config.tree import Config
from router.fleet.calibration_store import CalibrationStore
from router.fleet.fleet import Fleet


def fleet(url: str = "http://127.0.0.1:9101") -> Fleet:
    pool: dict[str, Any] = {"name": "main", "engine": "sglang", "unified": [{"name": "u0", "url": url}]}
    return Fleet(Config.model_validate({"pools": [pool]}))


def taught() -> Fleet:
    known = fleet()
    worker = known.pools["main"].workers["u0"]
    for n in range(20):
        worker.rates.observe_prefill(1000 + 100 * n, 500.0 + 50 * n, 0, float(n))
        worker.rates.observe_decode(4, 25.0, 900.0, float(n))
    worker.transfer.observe_rate(5e6, 3.0)
    worker.links.told(Tier.L4, "", 1e9, 1e3)
    worker.links.told(Tier.L3, "b", 3e9, 1e3)
    for _ in range(20):
        worker.links.observe(Tier.L2, 10.0, 30.0)
    known.pools["main"].rates.reuse_share = 0.5
    return known


def test_a_restart_starts_from_what_was_learned(tmp_path: Path) -> None:
    path, before = tmp_path / "calibration.json", taught()
    CalibrationStore(str(path), 30.0, before).save()
    after = fleet()
    assert after.pools["main"].workers["u0"].rates.prefill(0.0) != before.pools["main"].workers["u0"].rates.prefill(0.0)
    CalibrationStore(str(path), 30.0, after).load()
    for told in (before, after):
        assert told.pools["main"].rates.reuse_share == 0.5
    one, other = (each.pools["main"].workers["u0"] for each in (before, after))
    assert other.rates.calibration() == one.rates.calibration()
    assert other.transfer.link == one.transfer.link
    assert other.links.sources == one.links.sources
    for tier, link in one.links.restore.items():
        assert other.links.restore[tier].bytes_per_ms == pytest.approx(link.bytes_per_ms), tier
    assert after.pools["main"].rates.prefill(0.0) == before.pools["main"].rates.prefill(0.0)


def test_another_worker_of_that_name_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    CalibrationStore(str(path), 30.0, taught()).save()
    other = fleet("http://127.0.0.1:9102")
    CalibrationStore(str(path), 30.0, other).load()
    assert other.pools["main"].workers["u0"].rates.calibration().prefill is None


BAD_LINK = '{"main": {"pool": {"restore": {"links": {"L3": {"latency_ms": 0, "bytes_per_ms": -1}}}}}}'
DEEP = '{"main": {"pool": {"zz": ' + "[" * 5000 + "]" * 5000 + "}}}"


@pytest.mark.parametrize("text", ["", "{", '{"main": {"pool": {"queue_factor": -1}}}', json.dumps({"main": 5}), DEEP, BAD_LINK])
def test_a_broken_file_is_left_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    known = fleet()
    CalibrationStore(str(path), 30.0, known).load()
    assert known.pools["main"].rates.calibration().prefill is None


async def test_it_is_written_once_more_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    store = CalibrationStore(str(path), 3600.0, taught())
    store.start()
    await store.close()
    assert json.loads(path.read_text())["main"]["workers"]["u0"]["prefill"]["base_ms"] > 0


def test_without_a_path_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = CalibrationStore("", 1.0, taught())
    store.load()
    store.save()
    assert list(tmp_path.iterdir()) == []
