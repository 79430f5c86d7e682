"""`GET /v1/models`, which every OpenAI-compatible engine serves: the names it answers to and how long a prompt may be."""

from __future__ import annotations

import httpx
import msgspec

from engine_adapters.base import Endpoint
from engine_adapters.control import read
from engine_adapters.counts import count


class ServedModel(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None  # tokens; an extension of SGLang and vLLM


class ServedModels(msgspec.Struct, frozen=True):
    data: tuple[ServedModel, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(model.id for model in self.data)

    @property
    def max_prompt_tokens(self) -> int:
        """The shortest limit among the models; 0 = not told."""
        lengths = [length for model in self.data if (length := count(model.max_model_len))]
        return min(lengths, default=0)


async def read_models(http: httpx.AsyncClient, endpoint: Endpoint) -> ServedModels:
    return await read(http, endpoint, "/v1/models", ServedModels)
