"""Compiles the page kernels to code objects with the clang of the `ziglang` package: compile.py OUT_DIR. No ROCm is needed,
since the kernels include nothing. Leaves page_kernels.ARCH.s and page_kernels.ARCH.co."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ARCHES = ("gfx942", "gfx950")  # MI300, MI350
SOURCE = Path(__file__).with_name("page_kernels.hip")
_ZIG = (sys.executable, "-m", "ziglang")
_CODE_OBJECT = "-mcode-object-version=5"  # what ROCm 5.7 and later load
_DEVICE = ("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++17", "-O3", _CODE_OBJECT)


def compile_kernels(arch: str, folder: Path) -> Path:
    """The code object. By way of assembly: for an object file, clang would look for a linker by a name that is not there."""
    assembly, unlinked, linked = (folder / f"page_kernels.{arch}.{suffix}" for suffix in ("s", "o", "co"))
    _run(*_ZIG, "clang", *_DEVICE, f"--offload-arch={arch}", "-S", str(SOURCE), "-o", str(assembly))
    _run(
        *_ZIG, "clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", _CODE_OBJECT, "-c", str(assembly), "-o", str(unlinked)
    )
    _run(*_ZIG, "ld.lld", "-shared", str(unlinked), "-o", str(linked))
    unlinked.unlink()
    return linked


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=300)


if __name__ == "__main__":
    for target in ARCHES:
        compile_kernels(target, Path(sys.argv[1]))
