"""Lets SGLang 0.5.23 run on a CPU-only torch, with HiCache and prefill/decode disaggregation.

Put this folder on PYTHONPATH of an SGLang process and nowhere else. Python imports it at start; it then changes these modules
when they are imported, and nothing else:

| module | change | why |
|---|---|---|
| torchvision | two operators declared | its compiled operators need CUDA torch |
| torch, torch.cpu | Event and Stream stand-ins; `pin_memory` does nothing | CPU work is synchronous; nothing can be pinned |
| mem_cache.pool_host.* | no host registration, no pinning, `direct` copies as torch indexing | the copy kernels are CUDA only |
| mem_cache.pool_host.base | 1 GiB of memory is left free, not 10 | the pools of a tiny model take megabytes |
| disaggregation.*.conn | no host tensor indices | that path allocates pinned memory and CUDA events |
| disaggregation.nixl.conn, .decode | "VRAM" reads "DRAM" | pools are registered as VRAM whatever the device |

`sgl_kernel` beside this file stands in for the CUDA-only package. Scheduler, radix tree, HTTP layer, KV events, HiCache
controller, PD queues, bootstrap server and Mooncake or NIXL are the engine's own; only the timing of copies means nothing here.
The patched modules are private to 0.5.23: a newer SGLang needs this file looked through again.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

Patch = Callable[[Any], None]

SRT = "sglang.srt"
HOST_MEMORY_RESERVE_BYTES = 1 << 30
DRAM_MODULES = (f"{SRT}.disaggregation.nixl.conn", f"{SRT}.disaggregation.decode")


class Event:
    """What a CUDA event is where everything has already happened."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def record(self, *_: object, **__: object) -> None: ...
    def wait(self, *_: object, **__: object) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: object) -> float:
        return 0.0


class Stream:
    """What a CUDA stream is where there is only one order of work."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...
    def wait_stream(self, *_: object) -> None: ...
    def wait_event(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


def patch_torch_cpu(cpu: Any) -> None:
    current = Stream()
    cpu.Event, cpu.Stream = Event, Stream
    cpu.current_stream = cpu.default_stream = lambda *_, **__: current
    cpu.stream = lambda stream: stream or current
    cpu.set_stream = lambda _stream: None
    cpu.empty_cache = lambda: None


def patch_torch(torch: Any) -> None:
    if torch.cuda.is_available():
        return
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    for name in ("Event", "Stream", "current_stream", "stream"):  # a few spots name torch.cuda directly
        setattr(torch.cuda, name, getattr(torch.cpu, name))
    torch.cuda.synchronize = lambda *_, **__: None


def patch_pool_common(module: Any) -> None:
    module._cuda_host_register = lambda *_, **__: None
    module._cuda_host_unregister = lambda *_, **__: None


def patch_pool_base(module: Any) -> None:
    module.HICACHE_HOST_MEMORY_RESERVE_BYTES = HOST_MEMORY_RESERVE_BYTES
    module.HostKVCache.pin_memory = property(lambda _self: False, lambda _self, _value: None)


def patch_pool_mha(module: Any) -> None:
    module.transfer_kv_direct = copy_layers
    module.transfer_kv_per_layer_direct_pf_lf = copy_pages_to_layer
    module.transfer_kv_all_layer_direct_lf_pf = copy_layers_to_pages
    module._cuda_host_unregister = lambda *_, **__: None


def copy_layers(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """Token slots between two layer-first pools."""
    for src, dst in zip(src_layers, dst_layers, strict=False):
        dst[dst_indices.to(dst.device).long()] = src[src_indices.to(src.device).long()].to(dst.dtype)


def copy_pages_to_layer(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """Host pages [pages, layers, page_size, ...] to one device layer [tokens, ...]."""
    pages = (src_indices[::page_size] // page_size).long()
    for src, dst in zip(src_ptrs, dst_ptrs, strict=False):
        dst[dst_indices.long()] = src[pages, layer_id].reshape(-1, *dst.shape[1:])


def copy_layers_to_pages(src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """All device layers to host pages; `src_ptrs` holds the layers of each of `dst_ptrs` in turn."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = (dst_indices[::page_size] // page_size).long()
    for index, dst in enumerate(dst_ptrs):
        for layer in range(layers):
            src = src_ptrs[index * layers + layer]
            dst[pages, layer] = src[src_indices.long()].reshape(len(pages), page_size, *src.shape[1:])


def patch_sender(module: Any) -> None:
    for value in list(vars(module).values()):
        if isinstance(value, type) and getattr(value, "supports_host_tensor_indices", False):
            value.supports_host_tensor_indices = False  # type: ignore[attr-defined]


def leave(_module: Any) -> None:
    """For modules whose source alone is changed."""


PATCHES: dict[str, Patch] = {
    "torch": patch_torch,
    "torch.cpu": patch_torch_cpu,
    f"{SRT}.mem_cache.pool_host.common": patch_pool_common,
    f"{SRT}.mem_cache.pool_host.base": patch_pool_base,
    f"{SRT}.mem_cache.pool_host.mha": patch_pool_mha,
    f"{SRT}.disaggregation.decode": leave,
    **{f"{SRT}.disaggregation.{backend}.conn": patch_sender for backend in ("mooncake", "nixl", "mori", "fake")},
}


class PatchingLoader(importlib.abc.Loader):
    """Runs the real loader, then the patch."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._name in DRAM_MODULES:
            exec(self._dram_code(), module.__dict__)  # the engine's own source, two words changed
        else:
            self._inner.exec_module(module)
        PATCHES[self._name](module)

    def _dram_code(self) -> CodeType:
        source: str = self._inner.get_source(self._name)
        return compile(source.replace('"VRAM"', '"DRAM"'), self._inner.path, "exec")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Hands out `PatchingLoader`s for the named modules and declares torchvision's two operators just in time."""

    def __init__(self) -> None:
        self._looking_up: set[str] = set()
        self._operators: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision" and self._operators is None:
            self._declare_operators()
        if fullname not in PATCHES or fullname in self._looking_up:
            return None
        self._looking_up.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking_up.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = PatchingLoader(spec.loader, fullname)
        return spec

    def _declare_operators(self) -> None:
        torch: Any = importlib.import_module("torch")
        self._operators = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            self._operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "sitecustomize":  # not when a tool imports this file under its package name
    sys.meta_path.insert(0, PatchingFinder())
