"""What is told of a named machine, before a gateway is started."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from loadback.commands import build
from loadback.doctor.check import Mark
from loadback.doctor.examination import examine_config
from loadback.first_beliefs import first_beliefs
from router.config.load import parse_config

NAMED = """
pools:
  - name: main
    unified: [{url: 'http://127.0.0.1:1', name: u0}]
    hardware:
      machine: {accelerator: h200, model: kimi-k2, accelerators: 8, weight_type: fp4}
      l3_link: {gb_per_s: 20}
  - {name: other, models: ["*"], unified: [{url: 'http://127.0.0.1:2', name: u1}]}
"""
TOLD = (
    "8 x h200, kimi-k2 in fp4: prefill_base_ms: 21.2, prefill_ms_per_token: 0.00963239, prefill_ms_per_token2: 1.97385e-07, "
    "prefill_ms_per_cached_token: 0, itl_base_ms: 21.2, itl_ms_per_running: 1.73286, kv_bytes_per_token: 70272, "
    "l2_link: {latency_ms: 0.05, gb_per_s: 51}, l3_link: {latency_ms: 0, gb_per_s: 20}, "
    "l4_link: {latency_ms: 0.2, gb_per_s: 12}, pd_link: {latency_ms: 1, gb_per_s: 41.8}"
)


def test_the_values_are_told_by_their_keys() -> None:
    named, other = parse_config(NAMED, "test.yaml", {}).pools
    assert (first_beliefs(named), first_beliefs(other)) == (TOLD, None)


def test_check_shows_them(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(NAMED)
    shown = CliRunner().invoke(build(), ["serve", "--config", str(file), "--check"])
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if line.startswith("hardware")] == [f"hardware of main: {TOLD}"]


def test_check_refuses_a_machine_that_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(NAMED.replace("h200", "b300"))
    shown = CliRunner().invoke(build(), ["serve", "--config", str(file), "--check"])
    assert shown.exit_code == 1
    assert f"{file}: pools.0.hardware.machine.accelerator: no " in shown.output


async def test_doctor_shows_them() -> None:
    told = [check for check in await examine_config(parse_config(NAMED, "test.yaml", {})) if check.name == "hardware"]
    assert [(check.subject, check.mark, check.found) for check in told] == [("main", Mark.OK, TOLD)]
