"""`bench hip`: its JSON, what it refuses, and a small run where the native package is installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bench.hip import memory
from bench.hip.memory import WrongBytes, measure_memory
from bench.hip.outcome import DiskOutcome, MemoryOutcome, as_json, medians
from bench.hip.rivals import Buffers, Way
from kvtier.copy.native import native_module
from loadback.commands import build


def test_the_json_has_the_shape_that_was_agreed() -> None:
    ratios = {"ours": {16384: 0.91234, 65536: 1.0}, "numpy": {16384: 0.3, 65536: 0.4}}
    outcome = as_json(MemoryOutcome(ratios, ratios, 7.25, 33.0, 1.3, 2, "avx2"), DiskOutcome(0.95, 0.4, 2.7, "uring"))
    assert outcome["gather_ratio"] == outcome["scatter_ratio"] == {"16384": 0.912, "65536": 1.0}
    assert (outcome["batch_overhead_us"], outcome["ssd_ratio"]) == (7.2, 0.95)
    assert outcome["rivals_gather_ratio"] == {"numpy": {"16384": 0.3, "65536": 0.4}}
    assert as_json(MemoryOutcome(ratios, ratios, 7.0, 33.0, 1.3, 2, "avx2"), None)["ssd_ratio"] is None


def test_medians_are_by_way_and_page() -> None:
    assert medians({"ours": {64: [1.0, 9.0, 2.0]}}) == {"ours": {64: 2.0}}


def test_a_way_that_copies_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(buffers: Buffers, pages: object, page_bytes: int) -> object:
        return lambda: None

    fake = SimpleNamespace(HostBuffer=SimpleNamespace(create=bytearray), PageCopier=lambda threads: None)
    monkeypatch.setattr(memory, "ways_of", lambda native, threads: [Way("idle", idle, idle)])  # type: ignore[arg-type]
    with pytest.raises(WrongBytes, match="idle gathered wrong bytes into page 0 of 64 bytes"):
        measure_memory(fake, [64], 4096, 1, 2, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", ["", "x", "12", "4,16384"])
def test_pages_that_do_not_divide_are_refused(pages: str) -> None:
    result = CliRunner().invoke(build(), ["bench", "hip", "--pages", pages])
    assert result.exit_code == (2 if native_module() else 1)


@pytest.mark.slow
def test_the_command_measures_what_is_installed(tmp_path: Path) -> None:
    words = ["bench", "hip", "--memory-mb", "8", "--disk-mb", "8", "--rounds", "1", "--directory", str(tmp_path), "--json"]
    result = CliRunner().invoke(build(), words)
    if native_module() is None:
        assert result.exit_code == 1
        assert "pip install ./hip_ext" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout.splitlines()[-1])
    assert set(told["gather_ratio"]) == set(told["scatter_ratio"]) == {"16384", "65536", "262144", "2097152"}
    assert all(ratio > 0 for ratio in told["gather_ratio"].values())
    assert 0 < told["ssd_ratio"] <= 1
    assert "libc" in told["rivals_gather_ratio"]
    assert not list(tmp_path.iterdir())
