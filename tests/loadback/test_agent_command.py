"""`loadback agent` from outside: it says what a file means, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from zipfile import is_zipfile

from typer.testing import CliRunner

from engine_adapters.launch.environments import ROOT
from loadback.commands import build


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(), ["agent", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})
    return result.exit_code, result.output


def test_the_example_is_good() -> None:
    status, text = invoke("--config", str(ROOT / "configs/agent/node.yaml"), "--check")
    assert status == 0, text
    assert "node node-a, 4096 MiB of DRAM" in text


def test_what_is_good_is_told_on_standard_output() -> None:
    words = ["--config", str(ROOT / "configs/agent/node.yaml"), "--check"]
    result = CliRunner().invoke(build(), ["agent", *words], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.stdout.startswith("good: node node-a, ")
    assert "good" not in result.stderr


def test_a_fault_is_named_with_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("node: a\nsocket: /tmp/s\ndram: {bytes: plenty}\n")
    status, text = invoke("--config", str(file))
    assert status == 1
    assert "bad.yaml: dram.bytes: 'plenty' is no size" in text


def test_all_unknown_keys_are_named_with_the_nearest_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("node: a\nsockets: /tmp/s\ndram: {bytes: 64 MiB, prefualt: false}\n")
    status, text = invoke("--config", str(file), "--check")
    assert status == 1
    assert text.splitlines() == [
        f"{file}: sockets: unknown key; did you mean socket?",
        f"{file}: dram.prefualt: unknown key; did you mean prefault?",
    ]


def test_a_transport_that_is_not_installed_is_no_good_file(tmp_path: Path) -> None:
    file = tmp_path / "mori.yaml"
    file.write_text("node: a\nsocket: /tmp/s\ndram: {bytes: 64 MiB}\ntransport: {engine: mori}\n")
    status, text = invoke("--config", str(file), "--check")
    assert status == 1
    assert "mori.yaml: transport.engine mori needs the extra: pip install 'loadback[mori]'" in text


def test_more_memory_than_the_host_has_is_no_good_file(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    file.write_text("node: a\nsocket: /tmp/s\ndram: {bytes: 64 TiB}\n")
    status, text = invoke("--config", str(file), "--check")
    assert status == 1
    assert text.startswith(f"{file}: dram.bytes: 65,536.0 GiB of DRAM, but this host has ")
    assert "good" not in text


def test_what_stands_where_the_socket_is_to_be_is_no_good_file(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("years of work")
    file = tmp_path / "node.yaml"
    ssd = f"{{bytes: 1 GiB, directory: {tmp_path}/precious.txt}}"
    file.write_text(f"node: a\nsocket: {tmp_path}/precious.txt\ndram: {{bytes: 64 MiB}}\nssd: {ssd}\n")
    status, text = invoke("--config", str(file), "--check")
    assert status == 1
    assert text.splitlines() == [
        f"{file}: socket: {tmp_path}/precious.txt is there and is no socket: choose another path, or remove it",
        f"{file}: ssd.directory: {tmp_path}/precious.txt is no directory: choose another path, or remove it",
    ]


def test_the_sglang_plugin_comes_with_its_flags_and_says_what_it_made(tmp_path: Path) -> None:
    archive = tmp_path / "new" / "plugin.zip"
    result = CliRunner().invoke(build(), ["sglang-plugin", str(archive), "--worker", "p0"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert is_zipfile(archive)
    assert f"wrote {archive}, and made the folder {archive.parent} for it" in result.output
    assert f"PYTHONPATH={archive}" in result.output
    assert '"worker": "p0"' in result.output
    assert "--hicache-storage-backend dynamic" in result.output


def test_the_vllm_plugin_comes_with_its_flags(tmp_path: Path) -> None:
    archive = tmp_path / "plugin.zip"
    result = CliRunner().invoke(build(), ["vllm-plugin", str(archive), "--worker", "u0"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert is_zipfile(archive)
    assert f"wrote {archive}\n" in result.output
    assert f"PYTHONPATH={archive}" in result.output
    assert '"worker": "u0"' in result.output
    assert "--kv-transfer-config" in result.output
