"""What is believed of a worker before anything was measured: rates, links and the size of a token's KV.

The figures are starting points that calibration replaces; a model's and machine's own come from the configuration. Sources:
compute and decode curves are Dynamo's mocker's (`lib/mocker`: a measured single worker); KV bytes are Kimi K2's MLA geometry in
bf16, 61 x 576 x 2; links are the UMBP blog's (51 GB/s host to device, 66 GB/s local pool to host with 4 threads, 41.8 GB/s
RDMA) and 12 GB/s for one NVMe path; latencies are tens of microseconds by mori's RDMA bench.
"""

from __future__ import annotations

import msgspec

from costmodel.values import DecodeRates, Link, PrefillRates, Tier

BYTES_PER_MS_PER_GBS = 1e6


class HardwarePrior(msgspec.Struct, frozen=True):
    """Priors of one kind of worker. The router's configuration overrides single fields."""

    prefill: PrefillRates = PrefillRates(base_ms=16.5, ms_per_token=0.0152, ms_per_token2=4.2e-7)
    decode: DecodeRates = DecodeRates(itl_base_ms=5.7, itl_ms_per_running=0.2)
    host: Link = Link(latency_ms=0.05, bytes_per_ms=51 * BYTES_PER_MS_PER_GBS)  # L2 to L1
    pool_local: Link = Link(latency_ms=0.05, bytes_per_ms=66 * BYTES_PER_MS_PER_GBS)  # L3 on the worker's own node, to L2
    pool_remote: Link = Link(latency_ms=0.1, bytes_per_ms=41.8 * BYTES_PER_MS_PER_GBS)  # L3 on another node, to L2
    ssd: Link = Link(latency_ms=0.2, bytes_per_ms=12 * BYTES_PER_MS_PER_GBS)  # L4 to L2
    transfer: Link = Link(latency_ms=1.0, bytes_per_ms=41.8 * BYTES_PER_MS_PER_GBS)  # prefill to decode
    kv_bytes_per_token: float = 70_272.0

    def restore(self) -> dict[Tier, Link]:
        """`Prefill.restore` for a worker with every tier; drop the tiers that a worker does not have."""
        return {Tier.L2: self.host, Tier.L3: self.pool_remote, Tier.L4: self.ssd}
