"""One pool's derived prompts, as worker threads make them: plain calls without a loop, over the states that are remembered.

What is done with a prompt, and whether it is believed, is decided elsewhere.
"""

from __future__ import annotations

import time
from array import array
from pathlib import Path

import msgspec

from engine_adapters.base import EngineInfo, EngineKind
from engine_adapters.prompt.cache import PromptCache
from engine_adapters.prompt.engine_prompts import EnginePrompts, ids_json
from engine_adapters.prompt.state import PromptState
from engine_adapters.prompt.verify import Verdict, verify
from router.config.tree import PromptConfig


class Ask(msgspec.Struct, frozen=True):
    """A request whose prompt is wanted. `origin`: the thread that its thread was forked from. `info`: of the engine whose
    block ids are meant."""

    thread: str
    origin: str | None
    path: str
    body: bytes
    info: EngineInfo
    cache_salt: str | None


class Prompt(msgspec.Struct, frozen=True):
    """One prompt as the engine sees it. `blocks`: event ids of its full blocks. `state`: None where it was made whole.
    `cpu_ms`: of the thread that made it."""

    tokens: int
    blocks: array[int]
    page_size: int
    cpu_ms: float
    state: PromptState | None = None

    def ids_json(self) -> bytes | None:
        """All token ids as JSON, where they are known."""
        ids = self.state.exact_ids if self.state is not None else None
        return ids_json(ids) if ids is not None else None


class PromptReader:
    """Thread-safe. Its calls raise ValueError where no prompt can be derived."""

    def __init__(self, kind: EngineKind, config: PromptConfig) -> None:
        """Raises ValueError when the model folder lacks something."""
        folder = Path(config.model_dir)
        self._prompts = EnginePrompts.open(kind, folder, fast=config.fast, hash_seed=config.hash_seed)
        self.cache = PromptCache(
            self._prompts.model, config.max_bytes, max_thread_bytes=config.max_thread_bytes, keep_ids=config.keep_ids
        )

    def takes(self, path: str) -> bool:
        return self._prompts.takes(path)

    def extend(self, ask: Ask) -> Prompt:
        """From what is known of the thread, or of another that begins alike; remembered."""
        begun = time.thread_time()
        root = self._prompts.root(ask.info, ask.cache_salt)
        form = self._prompts.form(ask.path)
        body = ask.body if form is not None else self._prompts.chat(ask.path, ask.body)
        state = self.cache.extend(ask.thread, body, root, ask.origin, form)
        return Prompt(state.tokens, state.block_ids, root.page_size, _ms_since(begun), state)

    def whole(self, ask: Ask) -> Prompt:
        """Rendered by the plain template and tokenised at once; nothing is remembered."""
        begun = time.thread_time()
        root, model = self._prompts.root(ask.info, ask.cache_salt), self._prompts.model
        ids = model.encode(model.render(model.parse(self._prompts.chat(ask.path, ask.body))))
        blocks = root.ids(root.extend_digests(ids)[1])
        return Prompt(len(ids), blocks, root.page_size, _ms_since(begun))

    def verify(self, ask: Ask, state: PromptState) -> Verdict:
        """What `extend` gave for the same ask, against the whole."""
        return verify(state, self._prompts.model, self._prompts.chat(ask.path, ask.body))

    def forget(self, thread: str) -> None:
        self.cache.forget(thread)


def _ms_since(begun_s: float) -> float:
    return (time.thread_time() - begun_s) * 1000
