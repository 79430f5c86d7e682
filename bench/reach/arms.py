"""The arms of the comparison, equal in bytes of host memory: private L2 alone, and a smaller L2 with a shared L3.

Each prefill server's L1 is small so that sessions do not fit it; only the host tiers differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.reach.node import NodeAgent
from engine_adapters.launch.sglang import SglangSpec
from engine_adapters.sglang_storage.plugin import storage_flags, write_plugin

PREFILLS = 2
WORKER = "prefill"  # the name of both for restore cuts: a pool has one set of flags
_TOKEN_BYTES = 1024  # tiny-agent: 2 layers, K and V, 2 heads of 64, bfloat16


class Sizes(msgspec.Struct, frozen=True):
    """In tokens a prefill server."""

    l1_tokens: int
    l2_tokens: int
    l3_tokens: int  # of the shared pool, all servers together

    @property
    def l3_bytes(self) -> int:
        return self.l3_tokens * _TOKEN_BYTES

    @property
    def private_l2_tokens(self) -> int:
        """With all of L3's bytes dealt out to the servers."""
        return self.l2_tokens + self.l3_tokens // PREFILLS


def l2_only(sizes: Sizes, model_dir: Path) -> SglangSpec:
    return _spec(sizes, model_dir, sizes.private_l2_tokens, (), ())


def l2_l3(sizes: Sizes, model_dir: Path, agent: NodeAgent, folder: Path) -> SglangSpec:
    """`agent` need not run yet."""
    return _spec(sizes, model_dir, sizes.l2_tokens, attached(agent), (write_plugin(folder / "loadback_sglang.zip"),))


def attached(agent: NodeAgent) -> tuple[str, ...]:
    """Deadlines are long: on a machine whose two cores do everything a slow answer says nothing."""
    patience: dict[str, Any] = {"connect_s": 5, "look_s": 5, "get_s": 10, "put_s": 10, "retry_s": 0.1}
    return storage_flags(str(agent.socket), model="tiny-agent", worker=WORKER, prefetch_threshold=16, **patience)


def _spec(sizes: Sizes, model_dir: Path, l2_tokens: int, storage: tuple[str, ...], python_path: tuple[Path, ...]) -> SglangSpec:
    ratio = ("--hicache-ratio", f"{l2_tokens / sizes.l1_tokens:g}")
    return SglangSpec(
        model_dir=model_dir, port=0, kv_port=0, replay_port=0,
        kv_tokens=sizes.l1_tokens, host_tier_flags=(*ratio, *storage), python_path=python_path,
    )  # fmt: skip
