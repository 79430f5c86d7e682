"""A pool that names its machine and model believes what the simulator's engines are, but for what its file says beside."""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path

import pytest

from costmodel.hardware import HardwarePrior
from costmodel.roofline import Accelerator, DataType, Deployment, ModelShape, compute_type, kv_tokens, prior
from costmodel.terms import compute_ms
from costmodel.values import Link, Tier
from router.config.beliefs import believed, told_by
from router.config.data_sheets import CONFIGS, load_accelerator, load_model
from router.config.load import ConfigError, parse_config
from router.config.tree import HardwareConfig, LinkConfig, MachineConfig
from router.fleet.pool import Pool

H200 = "machine: {accelerator: h200, model: kimi-k2, accelerators: 8, weight_type: fp4, kv_type: fp8}"
SIMULATED = prior(load_accelerator("h200"), load_model("kimi-k2"), Deployment(8, "fp8", "fp4", 1.0))
FILE = "pools: [{{unified: [{{url: 'http://h:1'}}], hardware: {{{hardware}}}}}]"


def parse(hardware: str) -> HardwareConfig:
    return parse_config(FILE.format(hardware=hardware), "test.yaml", {}).pools[0].hardware


def faults_of(hardware: str) -> list[str]:
    with pytest.raises(ConfigError) as fault:
        parse(hardware)
    return str(fault.value).splitlines()


def test_the_gateway_believes_what_the_simulator_takes_for_true() -> None:
    hardware = parse(H200)
    assert hardware.prefill_prior() == SIMULATED.prefill
    assert hardware.decode_prior() == SIMULATED.decode
    assert hardware.restore_prior() == SIMULATED.restore()
    assert (hardware.pd_link.as_link(), hardware.kv_bytes_per_token) == (SIMULATED.transfer, SIMULATED.kv_bytes_per_token)


def test_workers_start_from_it() -> None:
    config = parse_config(FILE.format(hardware=H200), "test.yaml", {})
    (worker,) = Pool(config.pools[0], config).workers.values()
    assert (worker.rates.prefill(0.0), worker.rates.decode(0.0)) == (SIMULATED.prefill, SIMULATED.decode)
    assert worker.links.restore[Tier.L3] == SIMULATED.pool_remote


def test_what_is_given_beside_it_stands_also_where_it_is_a_default() -> None:
    hardware = parse(H200 + ", prefill_ms_per_token: 0.0152, l3_link: {gb_per_s: 20}")
    assert hardware.prefill_ms_per_token == 0.0152
    assert hardware.l3_link.as_link() == Link(0.0, 20e6), "a link is one value"
    assert hardware.prefill_base_ms == SIMULATED.prefill.base_ms
    assert hardware.l2_link.as_link() == SIMULATED.host


def test_every_key_is_told() -> None:
    assert {*told_by(HardwarePrior()), "machine"} == set(HardwareConfig.model_fields)
    assert HardwareConfig.model_validate(told_by(HardwarePrior())) == HardwareConfig()


def test_without_a_machine_nothing_is_read_or_changed() -> None:
    hardware = HardwareConfig(itl_base_ms=3.0, l2_link=LinkConfig(gb_per_s=1.0))
    assert believed(hardware) is hardware
    assert parse("itl_base_ms: 3, l2_link: {gb_per_s: 1}") == hardware


def test_what_is_assumed_can_be_given() -> None:
    assumed = parse(H200)
    given = parse(H200[:-1] + ", mfu: 0.2, hbm_share: 0.35, decode_context_tokens: 64000, compute_type: bf16}")
    assert given.prefill_ms_per_token == pytest.approx(assumed.prefill_ms_per_token * 2 * 1979 / 989)
    assert given.itl_ms_per_running == pytest.approx(assumed.itl_ms_per_running * 2)
    assert parse(H200.replace(", kv_type: fp8", "")).kv_bytes_per_token == 2 * assumed.kv_bytes_per_token


def test_files_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CONFIGS / "hardware" / "h200.yaml").read_text().replace("host_gb_per_s: 51 ", "host_gb_per_s: 25 "))
    assert parse(H200.replace("h200", str(mine))).l2_link.gb_per_s == 25


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("h200", "b300", ["accelerator: no ", "b300.yaml: choose one of cpu, h100", "or give the path of a .yaml file"]),
        ("kimi-k2", "kimi", ["model: no ", "choose one of deepseek-v3"]),
        ("accelerators: 8, ", "", ["accelerators: Field required"]),
        ("8", "2", ["accelerators: Kimi-K2 as fp4 on 2 x H200 leaves no memory for KV: use more accelerators"]),
        ("weight_type: fp4", "weight_type: int4", ["weight_type: Input should be 'fp4', 'fp8'"]),
        ("kimi-k2", "deepseek-v3", ["weight_type: DeepSeek-V3: weights_gb knows no 'fp4': choose one of bf16, fp8"]),
        ("fp4", "fp32", ["compute_type: H200 has no tflops as wide as weights in fp32: choose one of bf16, fp8"]),
        ("fp4", "fp4, compute_type: fp4", ["compute_type: H200: tflops knows no 'fp4': choose one of bf16, fp8"]),
        ("fp4", "fp4, mfu: 0", ["mfu: Input should be greater"]),
        ("weight_type", "weights_type", ["weights_type: unknown key; did you mean weight_type?"]),
    ],
)
def test_faults_name_the_key_and_what_mends_it(old: str, new: str, told: list[str]) -> None:
    text = "\n".join(faults_of(H200.replace(old, new, 1)))
    assert f"test.yaml: pools.0.hardware.machine.{told[0]}" in text
    assert all(words in text for words in told)


def test_every_fault_of_a_data_sheet_is_told_with_its_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CONFIGS / "hardware" / "h200.yaml").read_text().replace("hbm_gb:", "hbmgb:") + "colour: red\n")
    begin = f"test.yaml: pools.0.hardware.machine.accelerator: {mine}: "
    assert faults_of(H200.replace("h200", str(mine))) == [
        begin + "hbmgb: unknown key; did you mean hbm_gb?",
        begin + "colour: unknown key",
    ]


def test_machines_of_several_pools_are_told_at_once() -> None:
    pools = ", ".join(f"{{name: p{n}, unified: [{{url: 'http://h:{n}'}}], hardware: {{{H200}}}}}" for n in (1, 2))
    with pytest.raises(ConfigError) as fault:
        parse_config(f"pools: [{pools}]".replace("h200", "b300"), "test.yaml", {})
    assert [line.partition(": no ")[0] for line in str(fault.value).splitlines()] == [
        f"test.yaml: pools.{n}.hardware.machine.accelerator" for n in (0, 1)
    ]


def test_beliefs_that_the_section_would_refuse_name_its_key(tmp_path: Path) -> None:
    still = tmp_path / "still.yaml"
    still.write_text((CONFIGS / "hardware" / "h200.yaml").read_text().replace("step_ms: 21.2", "step_ms: 0"))
    (fault,) = faults_of(H200.replace("h200", str(still)))
    assert f"machine.accelerator: {still} and kimi-k2 make itl_base_ms 0.0: Input should be greater" in fault
    assert fault.endswith("mend their files, or give itl_base_ms beside `machine`")
    assert parse(H200.replace("h200", str(still)) + ", itl_base_ms: 9").itl_base_ms == 9


MACHINES = [load_accelerator(path.stem) for path in sorted((CONFIGS / "hardware").glob("*.yaml"))]
MODELS = [load_model(path.stem) for path in sorted((CONFIGS / "models").glob("*.yaml"))]
PAIRS = [
    (machine, model, DataType(weight_type)) for machine in MACHINES for model in MODELS for weight_type in model.weights_gb
]


@pytest.mark.parametrize(
    ("machine", "model", "weight_type"),
    [pair for pair in PAIRS if pair[2] is not DataType.FP32 or "fp32" in pair[0].tflops],
    ids=lambda each: getattr(each, "name", each),
)
@pytest.mark.parametrize("kv_type", DataType)
def test_every_shipped_pair_whose_types_fit_makes_finite_beliefs(
    machine: Accelerator, model: ModelShape, weight_type: DataType, kv_type: DataType
) -> None:
    fewest = int(model.weights_gb[weight_type] / machine.hbm_gb) + 1
    compute = compute_type(machine, weight_type)
    deployment = Deployment(fewest, compute, weight_type, kv_type.element_bytes, memory_fraction=1.0)
    assert kv_tokens(machine, model, deployment) > 0
    told = HardwareConfig.model_validate(told_by(prior(machine, model, deployment)))
    assert all(isfinite(value) and value > 0 for value in figures(told))


def figures(told: HardwareConfig) -> list[float]:
    links = [told.l2_link, told.l3_link, told.l4_link, told.pd_link]
    rates = [told.prefill_base_ms, told.prefill_ms_per_token, told.prefill_ms_per_token2, told.itl_base_ms]
    per_request = [told.itl_ms_per_running, told.kv_bytes_per_token]
    return rates + per_request + [link.latency_ms for link in links] + [link.gb_per_s for link in links]


PAGE = (CONFIGS.parent / "docs" / "cost-model.md").read_text(encoding="utf-8")
ROWS = list(re.finditer(r"^\| (\d) x (\w+), ([\w .-]+) in (\w+) \| (.+) \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2])
def test_the_pages_figures_are_these(row: re.Match[str]) -> None:
    count, accelerator, model, weight_type, told = row.groups()
    machine = MachineConfig(
        accelerator=accelerator.lower(),
        model=model.lower().replace(" ", "-"),
        accelerators=int(count),
        weight_type=DataType(weight_type),
        kv_type=DataType.BF16 if weight_type == "bf16" else DataType.FP8,
    )
    assert spelled(believed(HardwareConfig(machine=machine))) == told


def test_the_page_shows_machines_and_the_defaults() -> None:
    assert len(ROWS) == 5
    assert f"The defaults say {spelled(HardwareConfig()).replace(' | ', ' and ')}." in PAGE


def spelled(hardware: HardwareConfig) -> str:
    prefill, decode = hardware.prefill_prior(), hardware.decode_prior()
    computed = " / ".join(f"{compute_ms(prefill, tokens, 0):,.0f}" for tokens in (1_000, 10_000, 100_000))
    return computed + " | " + " / ".join(f"{decode.itl_base_ms + n * decode.itl_ms_per_running:.1f}" for n in (1, 32))
