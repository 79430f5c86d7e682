"""Every shipped description of hardware and models is read, and a wrong one is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router.config.data_sheets import CONFIGS, DataSheetError, load_accelerator, load_model


def test_every_shipped_file_is_read() -> None:
    hardware = [path.stem for path in (CONFIGS / "hardware").glob("*.yaml")]
    models = [path.stem for path in (CONFIGS / "models").glob("*.yaml")]
    assert set(hardware) == {"mi355x", "mi300x", "h200", "h100", "cpu"}
    assert set(models) == {"kimi-k2", "deepseek-v3", "qwen3-32b", "tiny-agent"}
    assert all(load_accelerator(name).hbm_gb > 0 for name in hardware)
    assert all(load_model(name).kv_elements_per_token > 0 for name in models)


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataSheetError, match="choose one of cpu, h100"):
        load_accelerator("b300")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((CONFIGS / "hardware" / "cpu.yaml").read_text() + "colour: red\n")
    with pytest.raises(DataSheetError, match=r"wrong\.yaml: colour: unknown key"):
        load_accelerator(str(wrong))


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("{name: x, gflop_per_tokn: 1, kv_replicated: 3}")
    with pytest.raises(DataSheetError) as fault:
        load_model(str(wrong))
    assert [line.removeprefix(f"{wrong}: ") for line in str(fault.value).splitlines()] == [
        "gflop_per_tokn: unknown key; did you mean gflop_per_token?",
        "kv_replicated: Expected `bool`, got `int`",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [(b"name: a\nname: b\n", "not YAML: key 'name' is given twice"), (b"a: [", "not YAML"), (b"\xff", "not UTF-8")],
)
def test_what_cannot_be_read_is_told_in_one_line(tmp_path: Path, text: bytes, told: str) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_bytes(text)
    with pytest.raises(DataSheetError) as fault:
        load_accelerator(str(wrong))
    assert str(fault.value).startswith(f"{wrong}: ")
    assert told in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hbm_gb_per_s", ".nan"), ("host_gb_per_s", "0"), ("step_ms", "-30"), ("ssd_gb_per_s", ".inf"), ("tflops", "{bf16: -1}")],
)
def test_no_machine_has_such_a_figure(tmp_path: Path, key: str, value: str) -> None:
    tree = yaml.safe_load((CONFIGS / "hardware" / "cpu.yaml").read_text())
    tree[key] = yaml.safe_load(value)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(tree))
    with pytest.raises(DataSheetError, match=f"{key}.*a positive number is needed"):
        load_accelerator(str(wrong))


def test_no_model_costs_less_than_nothing(tmp_path: Path) -> None:
    tree = yaml.safe_load((CONFIGS / "models" / "qwen3-32b.yaml").read_text())
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(tree | {"gflop_per_token": -1.0}))
    with pytest.raises(DataSheetError, match=r"gflop_per_token is -1\.0"):
        load_model(str(wrong))
