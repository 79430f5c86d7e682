"""What one gateway has learned of its workers is where the next one starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog

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


HUGE = '{"main": {"pool": {"prefill": {"base_ms": 1e308, "ms_per_token": 1}}}}'
TINY = '{"main": {"pool": {"transfer": {"latency_ms": 0, "bytes_per_ms": 1e-320}}}}'
FOREIGN = "pools:\n  - name: main\n"


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"main": {"pool": {"queue_factor": -1}}}', json.dumps({"main": 5}), DEEP, BAD_LINK, HUGE, TINY, FOREIGN],
)
def test_a_broken_file_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    known = fleet()
    store = CalibrationStore(str(path), 30.0, known)
    store.load()
    assert known.pools["main"].rates.calibration().prefill is None
    assert path.read_text() == text
    store.save()
    store.save()
    assert (tmp_path / "calibration.json.unreadable").read_text() == text
    assert json.loads(path.read_text())["main"]["workers"]["u0"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_later_version_s_file_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path, known = tmp_path / "calibration.json", fleet()
    path.write_text('{"main": {"pool": {"reuse_share": 0.25, "humidity": {"air": 1}}, "since": "then"}}')
    CalibrationStore(str(path), 30.0, known).load()
    assert known.pools["main"].rates.reuse_share == 0.25


def test_two_gateways_on_one_file_never_leave_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration.json"
    one, other = (CalibrationStore(str(path), 30.0, each) for each in (taught(), fleet()))
    replace = os.replace

    def meanwhile(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        other.save()
        replace(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    one.save()
    assert json.loads(path.read_text())["main"]["workers"]["u0"]["prefill"], "the last to finish, whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["absent/calibration.json", "folder", "pipe", "x" * 300, "nul\0"])
def test_what_cannot_be_written_is_told_once_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    store = CalibrationStore(str(tmp_path / name), 30.0, taught())
    with structlog.testing.capture_logs() as logs:
        store.load()
        store.save()
        store.save()
    assert [log["event"] for log in logs].count("calibration_not_kept") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()


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
