"""A worker's KV blocks as tensors, and copies of some of them in host memory: one contiguous part a layer, one piece a block.

What is stored of a block is its logical content, layer after layer, not its strides: how the device lays it out is its own.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found,unused-ignore]

from engine_adapters.vllm_storage.settings import ConnectorConfigError
from kvtier.client.engine_pages import EnginePages


class _Layer(NamedTuple):
    name: str
    blocks: torch.Tensor  # by kernel block
    shape: tuple[int, ...]  # of one kernel block
    kernel_blocks: int  # that make up one of vLLM's


class HostBlocks:
    """Blocks in host memory. `ready` before the bytes are looked at."""

    def __init__(self, parts: Sequence[torch.Tensor], count: int, copied: torch.Event | None = None) -> None:
        self.parts = parts
        self._count = count
        self._copied = copied

    def ready(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def pages(self, count: int) -> EnginePages:
        """The first `count` blocks."""
        sizes = (part.numel() * part.element_size() // self._count for part in self.parts)
        return EnginePages.striped([(part.data_ptr(), size) for part, size in zip(self.parts, sizes, strict=True)], count)


class BlockTensors:
    """All layers of one worker, in the order of their names."""

    def __init__(self, kv_caches: Mapping[str, Any], block_count: int, backends: Mapping[str, str]) -> None:
        """`backends` names the attention code of layers, which may order a block in its own way.

        Raises `ConnectorConfigError` for caches that are not made of blocks.
        """
        self._backends = backends
        self._layers = [_layer(name, kv_caches[name], block_count) for name in sorted(kv_caches, key=_natural)]
        self._device = self._layers[0].blocks.device
        self._pinned = self._device.type != "cpu"

    @property
    def layout(self) -> str:
        """Equal for workers whose blocks have the same layers, shapes, types and order."""
        parts = [
            (layer.name, layer.kernel_blocks, layer.shape, str(layer.blocks.dtype), self._backends.get(layer.name, ""))
            for layer in self._layers
        ]
        backends = "+".join(sorted(set(self._backends.values())))
        digest = sha256(repr(parts).encode()).hexdigest()[:16]
        return f"{len(parts)} layers, first {parts[0][2]}, {backends} on {_machine(self._device)}, {digest}"

    @property
    def block_bytes(self) -> int:
        return sum(layer.kernel_blocks * layer.blocks[0].numel() * layer.blocks.element_size() for layer in self._layers)

    def room(self, count: int) -> HostBlocks:
        """Host memory for `count` blocks."""
        return HostBlocks(
            [
                torch.empty((count * layer.kernel_blocks, *layer.shape), dtype=layer.blocks.dtype, pin_memory=self._pinned)
                for layer in self._layers
            ],
            count,
        )

    def copy_out(self, block_ids: Sequence[int]) -> HostBlocks:
        """After whatever the current stream is at; the blocks may be written again by what follows on it."""
        host = self.room(len(block_ids))
        indices = self._indices(block_ids)
        with torch.inference_mode():
            for layer, part in zip(self._layers, host.parts, strict=True):
                part.copy_(layer.blocks.index_select(0, indices[layer.kernel_blocks]), non_blocking=self._pinned)
        return HostBlocks(host.parts, len(block_ids), self._mark())

    def copy_in(self, host: HostBlocks, block_ids: Sequence[int]) -> None:
        """The first `len(block_ids)` of `host`; they are there on return. For threads beside the engine's."""
        if not self._pinned:
            self._write(host, block_ids)
            return
        stream = torch.Stream(self._device)
        with stream:
            self._write(host, block_ids)
        stream.synchronize()

    def _write(self, host: HostBlocks, block_ids: Sequence[int]) -> None:
        indices = self._indices(block_ids)
        with torch.inference_mode():  # vLLM's caches are made so, and may not be written otherwise
            for layer, part in zip(self._layers, host.parts, strict=True):
                filled = part[: len(block_ids) * layer.kernel_blocks]
                layer.blocks.index_copy_(0, indices[layer.kernel_blocks], filled.to(self._device, non_blocking=self._pinned))

    def _indices(self, block_ids: Sequence[int]) -> dict[int, torch.Tensor]:
        """Kernel blocks of `block_ids`, by how many make up one."""
        ids = torch.tensor(block_ids, dtype=torch.long)
        return {
            each: (ids[:, None] * each + torch.arange(each)).flatten().to(self._device)
            for each in {layer.kernel_blocks for layer in self._layers}
        }

    def _mark(self) -> torch.Event | None:
        if not self._pinned:
            return None
        copied = torch.Event(self._device)
        copied.record()
        return copied


def _layer(name: str, cache: Any, block_count: int) -> _Layer:
    """With the blocks first, as vLLM has them, or behind a leading dimension of keys and values, as older backends do."""
    if not isinstance(cache, torch.Tensor):
        raise ConnectorConfigError(f"layer {name} has state beside its KV blocks, which is not supported")
    blocks = cache
    if cache.shape[0] == 2 and cache.ndim > 1 and cache.shape[1] % block_count == 0 and block_count > 2:
        blocks = cache.movedim(1, 0)
    kernel_blocks, rest = divmod(blocks.shape[0], block_count)
    if rest or not kernel_blocks:
        raise ConnectorConfigError(f"layer {name} of shape {tuple(cache.shape)} is not made of {block_count} blocks")
    return _Layer(name, blocks, tuple(blocks.shape[1:]), kernel_blocks)


def _machine(device: torch.device) -> str:
    """On a CPU the instruction set decides how attention code orders keys within a block."""
    if device.type != "cpu":
        return str(device.type)
    amx = " AMX" if torch.cpu._is_amx_tile_supported() else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{amx}"


def _natural(name: str) -> list[tuple[int, str]]:
    """Layer 10 behind layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
