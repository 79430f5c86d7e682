"""One kind of engine's prompts: which bodies they can be derived of, in which profile, and where its chains of blocks begin.

Joins what this package knows of an engine for callers that know only its kind. It keeps no prompts (see `PromptCache`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine_adapters.base import EngineInfo, EngineKind
from engine_adapters.prompt import sglang_messages, sglang_responses, vllm_messages, vllm_responses
from engine_adapters.prompt.chat_body import body_of
from engine_adapters.prompt.dialect_body import DialectForm
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.profile import PromptProfile
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.vllm_chat import VllmProfile
from kvtier.hashing import vllm
from kvtier.hashing.chain import BlockChain
from kvtier.hashing.sglang import Chain, event_seed

CHAT_PATH = "/v1/chat/completions"
HASH_ALGORITHM_FLAG = "prefix_caching_hash_algo"

AsChat = Callable[[Mapping[str, Any], PromptTemplate], Mapping[str, Any]]

_OTHER_DIALECTS: dict[EngineKind, dict[str, AsChat]] = {
    EngineKind.SGLANG: {"/v1/messages": sglang_messages.messages_as_chat, "/v1/responses": sglang_responses.responses_as_chat},
    EngineKind.VLLM: {
        "/v1/messages": vllm_messages.messages_as_chat,
        "/v1/responses": vllm_responses.responses_as_chat,
    },
}
_FORMS: dict[EngineKind, dict[str, Callable[[PromptTemplate], DialectForm]]] = {
    EngineKind.SGLANG: {"/v1/messages": sglang_messages.MessagesForm, "/v1/responses": sglang_responses.ResponsesForm},
    EngineKind.VLLM: {"/v1/messages": vllm_messages.MessagesForm, "/v1/responses": vllm_responses.ResponsesForm},
}
_IDS_AT_ONCE = 16_384


class EnginePrompts:
    """`hash_seed`: vLLM's PYTHONHASHSEED, where its servers have one."""

    def __init__(self, kind: EngineKind, model: PromptModel, hash_seed: str | None = None) -> None:
        self.model = model
        self._kind = kind
        self._dialects = _OTHER_DIALECTS[kind]
        self._hash_seed = hash_seed
        self._forms = {path: form(model.template) for path, form in _FORMS[kind].items()}

    @classmethod
    def open(cls, kind: EngineKind, folder: Path, *, fast: bool = False, hash_seed: str | None = None) -> EnginePrompts:
        """Raises ValueError naming what the folder lacks, or the engine whose prompts cannot be derived."""
        return cls(kind, PromptModel.open(folder, profile_of(kind), fast=fast), hash_seed)

    def takes(self, path: str) -> bool:
        """Whether prompts of this API path can be derived."""
        return path == CHAT_PATH or path in self._dialects

    def chat(self, path: str, body: bytes) -> bytes:
        """A body of `path` as the chat body that the engine makes of it. Raises ValueError where it cannot be known."""
        as_chat = self._dialects.get(path)
        if as_chat is None:
            return body
        try:
            return body_of(as_chat(msgspec.json.decode(body), self.model.template))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the body is not of the form that {path} takes: {error!r}") from error

    def form(self, path: str) -> DialectForm | None:
        """How bodies of `path` become chats message by message; None = as `chat` does."""
        return self._forms.get(path)

    def root(self, info: EngineInfo, cache_salt: str | None) -> BlockChain:
        """The empty chain of the block ids in this engine's events. Raises ValueError where they cannot be derived."""
        if info.page_size < 1:
            raise ValueError(f"{info.engine} tells no page size")
        if self._kind is EngineKind.SGLANG:
            return Chain(info.page_size, info.bigram, event_seed(cache_salt))
        return vllm.root(info.page_size, _algorithm(info), hash_seed=self._hash_seed, cache_salt=cache_salt)


def profile_of(kind: EngineKind) -> PromptProfile:
    """Raises ValueError for an engine that is not known."""
    if kind is EngineKind.SGLANG:
        return SglangProfile()
    if kind is EngineKind.VLLM:
        return VllmProfile()
    raise ValueError(f"prompts of engine {kind.value!r} cannot be derived: leave `prompt` out")


def ids_json(ids: array[int]) -> bytes:
    """Token ids as the JSON array that an engine takes. In pieces, since each is written without letting others run."""
    starts = range(0, len(ids), _IDS_AT_ONCE)
    return b"[%b]" % b",".join([msgspec.json.encode(ids[start : start + _IDS_AT_ONCE].tolist())[1:-1] for start in starts])


def _algorithm(info: EngineInfo) -> vllm.HashAlgorithm:
    told = info.flags.get(HASH_ALGORITHM_FLAG)
    try:
        return vllm.HashAlgorithm(str(told)) if told is not None else vllm.HashAlgorithm.SHA256
    except ValueError as error:
        raise ValueError(f"{info.engine} hashes blocks by {told!r}, which is not known here") from error
