"""An emulated engine's load as it stands and as it has been, for `/v1/loads` and `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine_adapters.emulator.model.live_request import Stage
from engine_adapters.emulator.model.request import Cached


class LoadCounters(msgspec.Struct):
    """Cumulative since the start; durations in milliseconds."""

    prefill_tokens: int = 0
    prefill_busy_ms: float = 0.0
    decode_steps: int = 0
    decode_running_sum: int = 0
    decode_busy_ms: float = 0.0
    decode_square_sum: int = 0
    decode_product_sum: float = 0.0
    decode_tokens_per_s: float = 0.0
    generated: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    evicted_tokens: int = 0
    loaded_back_tokens: int = 0
    backed_up_tokens: int = 0
    hit_rate: float = 0.0  # of the last prefill
    transfer_bytes_per_ms: float = 0.0  # of the last transfer
    transfer_ms: float = 0.0

    def prefilled(self, tokens: int, duration_ms: float) -> None:
        self.prefill_tokens += tokens
        self.prefill_busy_ms += duration_ms

    def decoded(self, running: int, duration_ms: float) -> None:
        self.decode_steps += 1
        self.decode_running_sum += running
        self.decode_busy_ms += duration_ms
        self.decode_square_sum += running * running
        self.decode_product_sum += running * duration_ms
        self.decode_tokens_per_s = running / duration_ms * 1000.0

    def looked_up(self, prompt_tokens: int, cached: Cached) -> None:
        self.prompt_tokens += prompt_tokens
        self.cached_device_tokens += cached.device
        self.cached_host_tokens += cached.host
        self.cached_storage_tokens += cached.storage
        self.hit_rate = cached.tokens / prompt_tokens if prompt_tokens else 0.0

    def transferred(self, moved_bytes: int, duration_ms: float) -> None:
        self.transfer_bytes_per_ms = moved_bytes / duration_ms if duration_ms else 0.0
        self.transfer_ms = duration_ms


class QueueLoad(msgspec.Struct, frozen=True):
    requests: int = 0
    tokens: int = 0


class EngineLoad(msgspec.Struct, frozen=True):
    """`held_tokens`: KV that requests use now, in whole pages; `chunk_left_tokens`: what a half computed prompt still needs."""

    running: int
    queues: Mapping[Stage, QueueLoad]
    retracted: int
    chunk_left_tokens: int
    held_tokens: int
    counters: LoadCounters

    def queue(self, stage: Stage) -> QueueLoad:
        return self.queues.get(stage, QueueLoad())
