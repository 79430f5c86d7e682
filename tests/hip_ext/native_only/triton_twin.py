"""Run by an engine's Python: triton_twin.py interpret|compile TWIN. Runs the Triton kernels in the interpreter, or compiles
them for both GPUs; prints ok."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

if sys.argv[1] == "interpret":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is made

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def twin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("triton_pages", sys.argv[2])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpret(kernels: ModuleType) -> None:
    for words in (1, 7, 64, 1000):
        layers = [torch.randint(-(2**31), 2**31, (6, words), dtype=torch.int32) for _ in range(3)]
        bases = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64)
        pages = torch.tensor([5, 0, 3], dtype=torch.int64)
        packed = torch.zeros((3, 3, words), dtype=torch.int32)
        kernels.gather_pages[(3, 3)](packed, bases, pages, words, 3, BLOCK=64)
        assert torch.equal(packed, torch.stack([layer[pages] for layer in layers], dim=1))
        expected = [layer.clone() for layer in layers]
        packed = torch.randint(-(2**31), 2**31, (3, 3, words), dtype=torch.int32)
        for index, layer in enumerate(expected):
            layer[pages] = packed[:, index]
        kernels.scatter_pages[(3, 3)](packed, bases, pages, words, 3, BLOCK=64)
        assert all(torch.equal(layer, wanted) for layer, wanted in zip(layers, expected, strict=True))


def compile_for_gpus(kernels: ModuleType) -> None:
    signature = {
        "packed": "*i32",
        "layers": "*i64",
        "pages": "*i64",
        "page_words": "i32",
        "layer_count": "i32",
        "BLOCK": "constexpr",
    }
    for arch in ("gfx942", "gfx950"):
        for kernel in (kernels.gather_pages, kernels.scatter_pages):
            source = ASTSource(kernel, signature, constexprs={"BLOCK": 1024})
            made = triton.compile(source, target=GPUTarget("hip", arch, 64))
            assert made.asm["hsaco"][:4] == b"\x7fELF"
            assert "dwordx4" in made.asm["amdgcn"] or "dword" in made.asm["amdgcn"]


(interpret if sys.argv[1] == "interpret" else compile_for_gpus)(twin())
print("ok")
