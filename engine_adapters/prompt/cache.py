"""The prompts that are remembered: the states of many threads under one bound in bytes, what they share counted once.

Least recently used first out; forgetting costs a full tokenisation, nothing else. A thread that is new begins with what another
thread's prompt has in common with its own. Thread-safe; the work on a prompt happens outside of the lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from engine_adapters.prompt.dialect_body import DialectForm
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.rope import Chunk
from engine_adapters.prompt.state import STATE_BYTES, PromptState
from kvtier.hashing.chain import BlockChain


class CacheCounts(msgspec.Struct):
    """`continued`: from the thread's own last prompt; `begun_alike`: from another thread's; `cold`: from nothing. `refused`:
    too large to be kept. `evicted`: forgotten to make room."""

    continued: int = 0
    begun_alike: int = 0
    cold: int = 0
    refused: int = 0
    evicted: int = 0


class _Held(msgspec.Struct):
    chunk: Chunk
    owners: int


class PromptCache:
    """Of one model. `max_thread_bytes`: of one state by itself; larger ones are made but not kept. `keep_ids`: all token ids, 4
    bytes each, which verification, `input_ids` and going back far need; without them states take about a quarter."""

    def __init__(
        self, model: PromptModel, max_bytes: int, *, max_thread_bytes: int | None = None, keep_ids: bool = True
    ) -> None:
        self.counts = CacheCounts()
        self._model = model
        self._max_bytes = max_bytes
        self._max_thread_bytes = max_bytes if max_thread_bytes is None else max_thread_bytes
        self._keep_ids = keep_ids
        self._states: OrderedDict[str, PromptState] = OrderedDict()
        self._starts: dict[tuple[bytes, bytes], str] = {}  # by head and first message, and by head alone
        self._held: dict[int, _Held] = {}
        self._used_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def get(self, thread: str) -> PromptState | None:
        """The thread's last prompt, which counts as a use."""
        with self._lock:
            state = self._states.get(thread)
            if state is not None:
                self._states.move_to_end(thread)
            return state

    def extend(
        self, thread: str, body: bytes, root: BlockChain, origin: str | None = None, form: DialectForm | None = None
    ) -> PromptState:
        """The state of the thread's new chat body, remembered. `origin`: a thread that this one was forked from or continues;
        `form`: of a body that is of another protocol.

        Raises ValueError where the engine answers 400; what is remembered stays then.
        """
        own = self.get(thread)
        base, owner = (own, thread) if own is not None else self._begins_alike(body, origin, form)
        state = self._model.extend(base, body, root, keep_ids=self._keep_ids, form=form)
        with self._lock:
            if own is not None:
                self.counts.continued += 1
            elif base is not None and owner is not None:
                self.counts.begun_alike += 1
                state, parted = state.parted_from(base)
                if self._states.get(owner) is base:
                    self._replace(owner, parted)
            else:
                self.counts.cold += 1
            self._put(thread, state)
        return state

    def forget(self, thread: str) -> None:
        """Drop what is known of a thread, say because it was found wrong."""
        with self._lock:
            if thread in self._states:
                self._drop(thread)

    def _begins_alike(self, body: bytes, origin: str | None, form: DialectForm | None) -> tuple[PromptState | None, str | None]:
        if origin is not None and (state := self.get(origin)) is not None:
            return state, origin
        head, first = self._model.start_key(body, form)
        with self._lock:
            for key in ((head, first), (head, b"")):
                thread = self._starts.get(key)
                if thread is not None and (state := self._states.get(thread)) is not None:
                    return state, thread
        return None, None

    def _put(self, thread: str, state: PromptState) -> None:
        if thread in self._states:
            self._drop(thread)
        if sum(chunk.cost_bytes for chunk in state.chunks) + STATE_BYTES > self._max_thread_bytes:
            self.counts.refused += 1
            return
        self._states[thread] = state
        self._hold(state)
        head, first = state.start_key
        self._starts[head, first] = self._starts[head, b""] = thread
        while self._used_bytes > self._max_bytes:
            self._drop(next(iter(self._states)))
            self.counts.evicted += 1

    def _replace(self, thread: str, state: PromptState) -> None:
        """The same prompt in other chunks; its place among the recent stays."""
        before = self._states[thread]
        self._states[thread] = state
        self._hold(state)
        self._release(before)

    def _drop(self, thread: str) -> None:
        state = self._states.pop(thread)
        self._release(state)
        head, first = state.start_key
        for key in ((head, first), (head, b"")):
            if self._starts.get(key) == thread:
                del self._starts[key]

    def _hold(self, state: PromptState) -> None:
        self._used_bytes += STATE_BYTES
        for chunk in state.chunks:
            held = self._held.get(id(chunk))
            if held is None:
                self._held[id(chunk)] = _Held(chunk, 1)
                self._used_bytes += chunk.cost_bytes
            else:
                held.owners += 1

    def _release(self, state: PromptState) -> None:
        self._used_bytes -= STATE_BYTES
        for chunk in state.chunks:
            held = self._held[id(chunk)]
            held.owners -= 1
            if not held.owners:
                del self._held[id(chunk)]
                self._used_bytes -= chunk.cost_bytes
