"""Stands in for the CUDA-only `sgl_kernel` package where SGLang runs on a CPU.

Holds the one function that SGLang's CPU path calls, in plain torch; every other name is a function that raises when called, so
that a missing kernel shows where it is used and not at import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, pool_len: int
) -> None:
    """Writes each request's new cache slots into its row of the request-to-token table."""
    position = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        slots = out_cache_loc[position : position + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        position += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is not available on a CPU")

    missing.__name__ = name
    return missing
