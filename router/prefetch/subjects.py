"""What prefetches are about: the gateway's threads, and prompts that a client named. Gives their blocks, ids and digests.

Digests are the engine's whole 32-byte ones, of which agents' pages are named. They are made from token ids when a page range is
first wanted, off the loop, and a few prompts' are remembered.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from costmodel.values import Role
from costmodel.values import Turn as CostTurn
from engine_adapters.base import EngineInfo, EngineKind
from kvtier.hashing.chain import BlockChain
from kvtier.hashing.sglang import Chain, event_id, event_seed
from kvtier.page.key import DIGEST_BYTES
from router.errors import BadRequest, GatewayError, NoWorker, ThreadWithoutPages, UnknownThread
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.prefetch.named_prompts import Named, NamedPrompts
from router.threads.store import ThreadStore
from router.threads.thread import Thread
from router.turn.extend import Extender

_REMEMBERED_DIGESTS = 64
_UNKNOWN_OUTPUT = 256


class Prompt(msgspec.Struct, frozen=True):
    """A subject's prompt as the index knows it. `tokens`: of the next turn, as expected."""

    pool: Pool
    blocks: Sequence[int]
    block_tokens: int
    tokens: int
    turn: CostTurn
    ids_known: bool = True  # so that an engine can be asked for it


class Subjects:
    def __init__(self, fleet: Fleet, threads: ThreadStore, extender: Extender) -> None:
        self._fleet = fleet
        self._threads = threads
        self._extender = extender
        self.named = NamedPrompts()
        self._digests: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def require_thread(self, thread: str) -> str:
        """Raises `UnknownThread`."""
        if self._threads.get(thread) is None:
            message = f"no thread {thread!r}: it was never seen here, or is forgotten; replies name theirs in x-loadback-thread"
            raise UnknownThread(message, param="thread")
        return thread

    def require_pages(self, thread: str) -> Prompt:
        """Raises `UnknownThread`, and `ThreadWithoutPages` for one whose prompt names no page, or none yet."""
        prompt = self.prompt(self.require_thread(thread))
        if prompt is None:
            message = (
                f"thread {thread!r} names no page: its prompt is shorter than one, still being made into tokens, or cannot be "
                "(no `prompt` in its pool, images, LoRA): ask again later or send `tokens`"
            )
            raise ThreadWithoutPages(message, param="thread")
        return prompt

    def prompt(self, subject: str) -> Prompt | None:
        """None where nothing is known that could be found in the index."""
        named = self.named.get(subject)
        if named is not None:
            tokens = len(named.blocks) * named.block_tokens
            turn = CostTurn(subject, tokens + 1, _UNKNOWN_OUTPUT)
            return Prompt(named.pool, named.blocks, named.block_tokens, tokens + 1, turn, bool(len(named.ids)))
        thread = self._threads.get(subject)
        pool = self.pool_of(thread) if thread is not None and len(thread.blocks) else None
        if thread is None or pool is None:
            return None
        known = len(thread.blocks) * thread.block_tokens
        tokens = max(known, round(thread.sizes[-1] * thread.tokens_per_byte)) + round(thread.output_tokens) + 1
        turn = CostTurn(subject, tokens, round(thread.output_tokens) or _UNKNOWN_OUTPUT, 0, thread.prefill, thread.decode)
        return Prompt(pool, thread.blocks, thread.block_tokens, tokens, turn)

    def ids(self, subject: str) -> Sequence[int] | None:
        """All token ids known of it; None where only hashes are."""
        named = self.named.get(subject)
        if named is not None:
            return named.ids or None
        thread = self._threads.get(subject)
        pool = self.pool_of(thread) if thread is not None else None
        prompts = self._extender.pools.get(pool.name) if pool is not None else None
        state = prompts.reader.cache.get(subject) if prompts is not None and prompts.reader is not None else None
        return state.exact_ids if state is not None else None

    def cache_salt(self, subject: str) -> str | None:
        named = self.named.get(subject)
        return named.cache_salt if named is not None else None

    async def digests(self, subject: str, start: int, tokens: int) -> bytes:
        """Of the pages that lie within [start, start + tokens), DIGEST_BYTES each; empty where they cannot be known."""
        named = self.named.get(subject)
        if named is not None:
            return _cut(named.digests, start, tokens, named.block_tokens)
        thread = self._threads.get(subject)
        if thread is None or not len(thread.blocks):
            return b""
        key = (subject, thread.blocks[-1])  # an id says what lies before it as well
        whole = self._digests.get(key)
        if whole is None:
            whole = await self._make(thread)
            if not whole:
                return b""
            self._digests[key] = whole
            while len(self._digests) > _REMEMBERED_DIGESTS:
                self._digests.popitem(last=False)
        return _cut(whole, start, tokens, thread.block_tokens)

    def pool_of(self, thread: Thread | None) -> Pool | None:
        try:
            return None if thread is None else self._fleet.pool_for(thread.model)
        except GatewayError:
            return None

    async def _make(self, thread: Thread) -> bytes:
        pool = self.pool_of(thread)
        prompts = self._extender.pools.get(pool.name) if pool is not None else None
        state = prompts.reader.cache.get(thread.id) if prompts is not None and prompts.reader is not None else None
        ids = state.exact_ids if state is not None else None
        if state is None or ids is None:
            return b""
        digests = await asyncio.to_thread(_digests_of, state.root, ids)
        known = min(len(thread.blocks), len(digests) // DIGEST_BYTES)
        return digests if _event_ids(digests[: known * DIGEST_BYTES]) == list(thread.blocks[:known]) else b""


def engine_of(pool: Pool) -> EngineInfo:
    """Of any worker that prefills: they page alike. Raises `NoWorker` before one was discovered."""
    infos = (worker.info for worker in pool.workers.values() if worker.role is not Role.DECODE)
    info = next((info for info in infos if info is not None), None)
    if info is None:
        raise NoWorker(f"no worker of pool {pool.name!r} has been discovered yet")
    return info


def named_by_ids(pool: Pool, info: EngineInfo, ids: Sequence[int], cache_salt: str | None) -> Named:
    """Raises `BadRequest` for a prompt without a whole page, and for a pool whose engines' page names are not known."""
    if pool.adapter.kind is not EngineKind.SGLANG or info.page_size < 1:
        raise BadRequest(f"prompts of pool {pool.name!r} cannot be named by tokens: only SGLang's page names are known")
    chain = Chain(info.page_size, info.bigram, event_seed(cache_salt))
    packed = array("I", ids)
    digests = _digests_of(chain, packed)
    if not digests:
        raise BadRequest(
            f"a prompt of {len(packed)} tokens is shorter than a page of {info.page_size}: there is nothing to bring or to keep"
        )
    return Named(pool, digests, array("q", _event_ids(digests)), info.page_size, packed, cache_salt)


def named_by_digests(pool: Pool, info: EngineInfo, digests: bytes) -> Named:
    """Raises `BadRequest` for a pool whose engines do not tell how many tokens a page has."""
    if info.page_size < 1:
        raise BadRequest(f"prompts of pool {pool.name!r} cannot be named by hashes: its engines tell no page size")
    return Named(pool, digests, array("q", _event_ids(digests)), info.page_size)


def _digests_of(root: BlockChain, ids: Sequence[int]) -> bytes:
    return b"".join(root.extend_digests(ids)[1])


def _cut(digests: bytes, start: int, tokens: int, block_tokens: int) -> bytes:
    first, last = -(-start // block_tokens), (start + tokens) // block_tokens
    return digests[first * DIGEST_BYTES : last * DIGEST_BYTES]


def _event_ids(digests: bytes) -> list[int]:
    return [event_id(digests[at : at + DIGEST_BYTES]) for at in range(0, len(digests), DIGEST_BYTES)]
