"""The truth about an emulated engine: its sizes and its rates, known to the engine model alone.

No policy ever sees these values; a router has to learn them from what the engine reports.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class EngineRole(StrEnum):
    """Which half of the work one engine does; the values are SGLang's `disaggregation_mode`."""

    UNIFIED = "null"
    PREFILL = "prefill"
    DECODE = "decode"


class EngineParams(msgspec.Struct, frozen=True):
    """Sizes in tokens or bytes, times in milliseconds, rates per millisecond.

    A prefill batch takes `prefill_base_ms + prefill_ms_per_token * new + prefill_ms_per_token2 * sum(end^2 - start^2)
    + prefill_ms_per_end2 * sum(end^2)`, the last for backends that attend for cached tokens, too (torch's own); a decode step
    `decode_base_ms + decode_ms_per_running * running + decode_ms_per_context_token * (KV tokens of all running)`. The defaults
    resemble an 8B model on one accelerator.
    """

    role: EngineRole = EngineRole.UNIFIED
    page_tokens: int = 16
    kv_tokens: int = 65_536
    host_kv_tokens: int = 0  # 0 = no host tier
    max_running: int = 64
    chunk_tokens: int = 8_192
    max_prefill_tokens: int = 16_384
    context_tokens: int = 32_768
    kv_bytes_per_token: int = 131_072

    prefill_base_ms: float = 6.0
    prefill_ms_per_token: float = 0.04
    prefill_ms_per_token2: float = 2.0e-7
    prefill_ms_per_end2: float = 0.0
    decode_base_ms: float = 6.0
    decode_ms_per_running: float = 0.08
    decode_ms_per_context_token: float = 0.0

    host_write_bytes_per_ms: float = 20.0e6
    load_back_bytes_per_ms: float = 20.0e6
    load_back_base_ms: float = 0.2
    load_back_threshold_tokens: int = 10
    load_back_compute_share: float = 0.0  # of the compute units, taken from prefill by a copying kernel; 0 = a copy engine
    pool_threshold_tokens: int = 256  # what a shared pool must have beyond device and host to be read
    transfer_bytes_per_ms: float = 10.0e6
    transfer_base_ms: float = 1.0
    decode_keeps_cache: bool = False  # a decode worker with a radix cache of its own
    decode_reserved_tokens: int = 512  # kept free for each request that a decode worker accepts
    admission_output_ratio: float = 0.7  # share of max_new_tokens that admission reserves
    admission_output_clip: int = 4_096
    publish_decode_steps: int = 40  # page events wait for that many decode steps while nothing else happens
    speed: float = 1.0  # every duration is divided by it

    def __post_init__(self) -> None:
        if self.kv_tokens < self.page_tokens or self.page_tokens < 1:
            raise ValueError(f"kv_tokens ({self.kv_tokens}) must hold at least one page of {self.page_tokens} tokens")
        if self.speed <= 0:
            raise ValueError("speed must be positive")

    @property
    def keeps_cache(self) -> bool:
        return self.role is not EngineRole.DECODE or self.decode_keeps_cache

    def prefill_ms(self, spans: list[tuple[int, int]]) -> float:
        """Duration of one prefill batch over (start, end) token spans."""
        new = sum(end - start for start, end in spans)
        square = sum(end * end - start * start for start, end in spans)
        attended = self.prefill_ms_per_token2 * square
        if self.prefill_ms_per_end2:
            attended += self.prefill_ms_per_end2 * sum(end * end for _, end in spans)
        return (self.prefill_base_ms + self.prefill_ms_per_token * new + attended) / self.speed

    def decode_ms(self, running: int, context_tokens: int) -> float:
        read_ms = self.decode_ms_per_context_token * context_tokens
        return (self.decode_base_ms + self.decode_ms_per_running * running + read_ms) / self.speed

    def load_back_ms(self, tokens: int) -> float:
        return self._moved(tokens, self.load_back_base_ms, self.load_back_bytes_per_ms)

    def host_write_ms(self, tokens: int) -> float:
        return self._moved(tokens, 0.0, self.host_write_bytes_per_ms)

    def transfer_ms(self, tokens: int) -> float:
        return self._moved(tokens, self.transfer_base_ms, self.transfer_bytes_per_ms)

    def _moved(self, tokens: int, base_ms: float, bytes_per_ms: float) -> float:
        return (base_ms + tokens * self.kv_bytes_per_token / bytes_per_ms) / self.speed
