"""The page kernels: code objects for both GPUs and their instructions, and their body lane by lane on the CPU."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from loadback_hip import kernels

SCRIPT = Path(__file__).parents[3] / "hip_ext" / "src" / "kernels" / "compile.py"
MACHINES = {"gfx942": 0x4C, "gfx950": 0x4F}  # EF_AMDGPU_MACH of LLVM's AMDGPU guide
AMDGPU, METADATA = 224, 32
ARGUMENT_BYTES = 48


class CodeObject(NamedTuple):
    machine: int
    arch: int
    kernels: list[dict[str, Any]]


def read_code_object(data: bytes) -> CodeObject:
    """An ELF64's header, and the metadata of its AMDGPU note."""
    assert data[:6] == b"\x7fELF\x02\x01"
    machine, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    table, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for header in (data[table + index * size :][:size] for index in range(count)):
        kind, _, start = struct.unpack_from("<IIQ", header)
        if kind == 4:  # PT_NOTE
            name_bytes, length, note = struct.unpack_from("<III", data, start)
            assert (note, data[start + 12 :][:name_bytes]) == (METADATA, b"AMDGPU\0")
            metadata = msgspec.msgpack.decode(data[start + 12 + (name_bytes + 3) // 4 * 4 :][:length])
            return CodeObject(machine, flags & 0xFF, metadata["amdhsa.kernels"])
    raise AssertionError("no note")


@pytest.mark.parametrize("arch", kernels.ARCHES)
def test_the_build_made_code_objects(arch: str) -> None:
    made = read_code_object(kernels.code_object(arch))
    assert (made.machine, made.arch) == (AMDGPU, MACHINES[arch])
    assert {kernel[".name"] for kernel in made.kernels} == {kernels.GATHER, kernels.SCATTER}
    for kernel in made.kernels:
        assert kernel[".private_segment_fixed_size"] == 0  # no scratch
        assert kernel[".group_segment_fixed_size"] == 0
        assert kernel[".vgpr_spill_count"] == kernel[".sgpr_spill_count"] == 0
        assert kernel[".vgpr_count"] <= 64  # eight waves a SIMD
        assert kernel[".max_flat_workgroup_size"] == kernels.BLOCK_LANES
        arguments = [each for each in kernel[".args"] if not each[".value_kind"].startswith("hidden")]
        assert [each[".size"] for each in arguments] == [ARGUMENT_BYTES] == [kernels.KERNEL_ARGUMENT.size]


def test_a_gpu_without_kernels() -> None:
    with pytest.raises(kernels.NoCodeObject, match="no kernels for gfx1100: there are gfx942, gfx950"):
        kernels.code_object("gfx1100")


@pytest.mark.slow
@pytest.mark.parametrize("arch", kernels.ARCHES)
def test_instructions(arch: str, tmp_path: Path) -> None:
    subprocess.run(["nice", sys.executable, SCRIPT, tmp_path], check=True, timeout=300)
    text = (tmp_path / f"page_kernels.{arch}.s").read_text(encoding="utf-8")
    for name in (kernels.GATHER, kernels.SCATTER):
        body = text.partition(f"\n{name}:")[2].partition("s_endpgm")[0]
        assert len(re.findall(r"global_load_dwordx4", body)) >= 4  # several under way
        stores = re.findall(r"global_store_dwordx4[^\n]*", body)
        assert len(stores) >= 4
        assert all(store.endswith(" nt") for store in stores)
        assert not re.findall(r"\b(?:flat|scratch|buffer|ds)_(?:load|store|read|write)", body)
    assert read_code_object((tmp_path / f"page_kernels.{arch}.co").read_bytes()).arch == MACHINES[arch]


@pytest.mark.slow
def test_lane_by_lane(compiled: Callable[..., Path]) -> None:
    program = compiled("lane_test.cpp", flags=("-fsanitize=address,undefined",))
    subprocess.run(["nice", program], check=True, timeout=120)
