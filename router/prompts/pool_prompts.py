"""All that one pool has for deriving prompts: the reader, its worker threads, and how far each model may be trusted."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.config.tree import PromptConfig
from router.prompts.counts import Fallback, PromptCounts
from router.prompts.reader import PromptReader
from router.prompts.trust import Level, Trust

T = TypeVar("T")
_MODELS = 256  # names come from clients


class PoolPrompts:
    """`reader` None: the model folder could not be opened, and `error` says why. Verifications have a thread of their own, so
    that no turn's prompt waits for one."""

    def __init__(self, name: str, config: PromptConfig, reader: PromptReader | None, error: str = "") -> None:
        self.name = name
        self.config = config
        self.reader = reader
        self.error = error
        self.counts = PromptCounts()
        self.pending = 0
        self.pending_bytes = 0
        self.verifying = False
        self._trusts: OrderedDict[tuple[str, str], Trust] = OrderedDict()
        self._workers = ThreadPoolExecutor(config.threads, thread_name_prefix=f"prompt-{name}")
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix=f"verify-{name}")

    def trust(self, model: str, path: str) -> Trust:
        """Kept for as long as the model is asked for."""
        key = (model, path)
        trust = self._trusts.get(key)
        if trust is None:
            trust = self._trusts[key] = Trust(self.config.verify_every)
            if len(self._trusts) > _MODELS:
                self._trusts.popitem(last=False)
        else:
            self._trusts.move_to_end(key)
        return trust

    def take_room(self, size: int) -> bool:
        """Whether one more prompt, of a body of `size` bytes, may be made; it is to be given back then."""
        config = self.config
        if self.pending >= config.queue_limit or self.pending_bytes + size > config.queue_bytes:
            return False
        self.pending += 1
        self.pending_bytes += size
        return True

    def give_room(self, size: int) -> None:
        self.pending -= 1
        self.pending_bytes -= size

    def crashed(self) -> bool:
        """Count a fault of ours. Whether to tell it: the first, the second, the fourth and so on, since one client's bodies may
        all hit the same."""
        self.counts.fallbacks[Fallback.CRASHED] += 1
        return self.counts.fallbacks[Fallback.CRASHED].bit_count() == 1

    async def run(self, work: Callable[[], T]) -> T:
        """In a tokenizer thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    async def run_verification(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._verifier, work)

    @property
    def state(self) -> str:
        """The worst of its models: exact, whole, discredited; or unusable."""
        if self.reader is None:
            return "unusable"
        levels = {trust.level for trust in self._trusts.values()}
        if Level.LINEAGE in levels:
            return "discredited"
        return Level.WHOLE.value if Level.WHOLE in levels else Level.EXACT.value

    def models(self) -> list[tuple[str, str, Trust]]:
        """Model, path and trust of all that were asked for."""
        return [(model, path, trust) for (model, path), trust in self._trusts.items()]

    def close(self) -> None:
        for workers in (self._workers, self._verifier):
            workers.shutdown(wait=False, cancel_futures=True)
