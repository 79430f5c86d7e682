"""One turn as it went: what the experiments count."""

from __future__ import annotations

import msgspec

from costmodel.values import WorkerKey


class Served(msgspec.Struct, frozen=True, gc=False):
    """Times of the agenda in ms. `device_tokens` to `disk_tokens` came from cache, L1 to L4; the rest of the prompt was
    computed."""

    arrived_ms: float
    first_ms: float
    ended_ms: float
    prompt_tokens: int
    output_tokens: int
    device_tokens: int
    host_tokens: int
    pool_tokens: int
    disk_tokens: int
    first_call: bool
    prefill: WorkerKey
    decode: WorkerKey
    predicted_ttft_ms: float
    predicted_total_ms: float

    @property
    def ttft_ms(self) -> float:
        return self.first_ms - self.arrived_ms

    @property
    def e2e_ms(self) -> float:
        return self.ended_ms - self.arrived_ms

    @property
    def cached_tokens(self) -> int:
        return self.device_tokens + self.host_tokens + self.pool_tokens + self.disk_tokens
