"""`bench tiers`: the agreed JSON, and parts that really measure (small)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.tiers import cli
from bench.tiers.buffers import Buffer
from bench.tiers.cli import as_json
from bench.tiers.control import ControlCpu
from bench.tiers.experiment import Outcome, Parts, run_experiment
from bench.tiers.local import LocalRatios, local_ratios
from bench.tiers.loopback import LoopbackRatio
from bench.tiers.ssd import SsdRatio
from kvtier.client.copier import PortableCopier
from kvtier.client.page_client import PageClient
from loadback.commands import build


def test_the_json_has_the_agreed_shape() -> None:
    local = {65_536: LocalRatios(0.9, 0.8, 0.7, 0.6, 30.0)}
    outcome = Outcome(
        True, "plain", local, local, LoopbackRatio(0.9, 4.0), SsdRatio(0.95, 2.0), 0.8, 74.0, ControlCpu(7.0, 3.0)
    )
    shown = as_json(outcome)
    assert shown["local_ratio"] == {"65536": 0.8}
    assert (shown["loopback_ratio"], shown["ssd_ratio"]) == (0.9, 0.95)
    assert (shown["match_ms"], shown["index_mb_per_million"]) == (0.8, 74.0)
    assert (shown["control_cpu_ms_per_1000_pages"], shown["put_control_cpu_ms_per_1000_pages"]) == (3.0, 7.0)


def test_what_was_not_measured_is_absent() -> None:
    assert as_json(Outcome(False)) == {}


def test_pages_of_a_buffer_do_not_overlap() -> None:
    buffer = Buffer(1 << 20)
    pages = buffer.pages(65_536)
    pieces = sorted(piece for number in range(len(pages)) for piece in pages.pieces(number))
    assert sum(length for _, length in pieces) == 1 << 20
    assert all(before[0] + before[1] <= after[0] for before, after in pairwise(pieces))
    buffer.mark(65_536, seed=2)
    assert len({bytes(buffer.view[page * 32_768 : page * 32_768 + 16]) for page in range(16)}) == 16


@pytest.mark.slow
def test_every_part_with_an_agent_measures_something(tmp_path: Path) -> None:
    outcome = run_experiment(tmp_path, [Parts.LOCAL, Parts.LOOPBACK, Parts.CONTROL], 1, lambda text: None)
    assert set(outcome.local) == set(outcome.portable) == {65_536, 262_144, 1_048_576, 2_097_152}
    assert outcome.loopback is not None
    assert outcome.loopback.ratio > 0
    assert outcome.control_cpu is not None
    assert min(outcome.control_cpu) > 0


def tiers(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Outcome]) -> Result:
    monkeypatch.setattr(cli, "run_experiment", run)
    return CliRunner().invoke(build(), ["bench", "tiers", "--only", "index"])


def test_without_native_copies_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run scripts/envs/hip" in tiers(monkeypatch, lambda *_: Outcome(native=False)).stderr
    assert "scripts/envs/hip" not in tiers(monkeypatch, lambda *_: Outcome(native=True)).stderr


def test_memory_that_is_not_mapped_in_time_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PageClient, "warm", lambda *_: False)

    def run(*_: object) -> Outcome:
        local_ratios(tmp_path / "none.sock", PortableCopier(), 65_536, 1, 1)
        return Outcome(native=True)

    result = tiers(monkeypatch, run)
    assert result.exit_code == 1
    assert result.stderr.startswith("bench tiers: the memory of the agent was not mapped within 10 s: ")
    assert len(result.stderr.splitlines()) == 1
