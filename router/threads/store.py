"""The threads that this gateway remembers: finds the one that a request belongs to and keeps what was learned of it.

A request is matched by its lineage, deepest known position first; the client's key only decides between threads and groups
them. Bounded in bytes, least recently used first; forgetting costs routing quality, nothing else. Knows no HTTP and no engines.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import islice

import msgspec
import xxhash

from costmodel.values import WorkerKey
from engine_adapters.base import ReplyFacts
from router.body.scan import Scanner
from router.body.scanned import Scanned
from router.threads.estimate import Estimator, blend
from router.threads.keys import ThreadHints
from router.threads.lineage import MAX_POSITIONS, State, Tracer
from router.threads.match import Match, Prompt, recent, recognise
from router.threads.sighting import Kind, Sighting, TokenCounts
from router.threads.thread import Group, Thread

_UNSIGNED = (1 << 64) - 1
_ID_MASK = (1 << 48) - 1


class ThreadStore:
    """All calls are plain, from one loop. Times in ms of one clock."""

    def __init__(self, scanner: Scanner[State], *, max_bytes: int = 64 * 1024 * 1024, resume_gap_s: float = 60.0) -> None:
        self._scanner = scanner
        self._max_bytes = max_bytes
        self._resume_gap_ms = resume_gap_s * 1000
        self._tracer = Tracer()
        self._estimator = Estimator()
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._owners: dict[int, Thread] = {}  # digest of a position -> the thread that had it last
        self._groups: dict[str, Group] = {}  # by client key
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._threads)

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def get(self, thread_id: str) -> Thread | None:
        return self._threads.get(thread_id)

    def newest(self, limit: int) -> list[Thread]:
        """Up to `limit` threads, most recently used first."""
        return list(islice(reversed(self._threads.values()), limit))

    def observe(self, scanned: Scanned[State], hints: ThreadHints, now_ms: float) -> Sighting:
        """Recognise a request and remember it. Concurrent requests see each other at once."""
        prompt = self._prompt(scanned)
        match = recognise(prompt, hints, self._groups.get(hints.key or ""), self._resume_gap_ms, now_ms)
        thread = match.thread
        if thread is None:
            thread = self._begin(prompt, match, hints, scanned.model, now_ms)
            idle_ms = 0.0
        else:
            idle_ms = max(now_ms - thread.seen_ms, 0.0)
            self._go_on(thread, prompt, match.kind, now_ms)
            thread.epoch = hints.epoch
            if thread.key is None and hints.key is not None:
                thread.key = hints.key  # a client has named its thread at last
                self._lead_to(thread, hints.key)
        self._evict(thread)
        return self._sighting(thread, match, prompt, scanned, idle_ms)

    def look(self, scanned: Scanned[State], hints: ThreadHints, now_ms: float) -> Sighting:
        """What `observe` would say, without remembering the request."""
        prompt = self._prompt(scanned)
        match = recognise(prompt, hints, self._groups.get(hints.key or ""), self._resume_gap_ms, now_ms)
        thread = match.thread or self._named(prompt, match, hints, scanned.model, now_ms)
        idle_ms = max(now_ms - thread.seen_ms, 0.0)
        return self._sighting(thread, match, prompt, scanned, idle_ms)

    def committed(self, thread_id: str, prefill: WorkerKey, decode: WorkerKey, now_ms: float) -> None:
        """The thread's request was sent to these workers (the same one twice where prefill and decode are not apart)."""
        thread = self._threads.get(thread_id)
        if thread is not None:
            thread.prefill, thread.decode, thread.placed_ms = prefill, decode, now_ms

    def finished(self, seen: Sighting, facts: ReplyFacts, now_ms: float) -> None:
        """The reply to a request is complete."""
        thread = self._threads.get(seen.thread)
        if thread is None:
            return
        thread.seen_ms = now_ms
        if facts.completion_tokens > 0:
            thread.output_tokens = blend(thread.output_tokens, facts.completion_tokens)
            thread.rates.learn_output(facts.completion_tokens)
        if facts.prompt_tokens > 0:
            _learn_prompt(thread, seen, facts.prompt_tokens)

    def extended(self, thread_id: str, blocks: array[int], block_tokens: int) -> None:
        """The thread's prompt was tokenised: these are its block hashes so far."""
        thread = self._threads.get(thread_id)
        if thread is not None:
            self._bytes += 8 * (len(blocks) - len(thread.blocks))
            thread.blocks, thread.block_tokens = blocks, block_tokens
            self._evict(thread)

    def _prompt(self, scanned: Scanned[State]) -> Prompt:
        """Trace the request; where only its end was parsed, its beginning comes from a thread that has it."""
        lineage = self._tracer.trace(scanned)
        base = lineage.base.positions
        owner = self._owner_at(lineage.base_digest, base)
        if base and owner is None:
            scanned = self._scanner.whole(scanned)
            lineage = self._tracer.trace(scanned)
            base, owner = 0, self._owner_at(lineage.head, 0)
        if lineage.states is not None:
            self._scanner.remember(_traced(scanned, len(lineage.states)), lineage.states)
        if base and owner is not None:
            digests, sizes = owner.digests[: base + 1], owner.sizes[: base + 1]
        else:
            digests, sizes = array("q", (lineage.head,)), array("I", (lineage.head_size,))
        digests.extend(lineage.digests)
        sizes.extend(lineage.sizes)
        known = base + 1 if owner is not None else 0
        owners = self._owners
        for position in range(len(lineage.digests) - 1, -1, -1):
            found = owners.get(lineage.digests[position])
            if found is not None:
                owner, known = found, base + position + 2
                break
        fixed = len(digests) if lineage.open_from is None else lineage.open_from
        return Prompt(digests, sizes, fixed, lineage.media, known, self._ancestor(owner, digests, known))

    def _ancestor(self, owner: Thread | None, digests: array[int], known: int) -> Thread | None:
        """The thread that a lineage has its first `known` positions of. A fork has them of its parent: another fork from the
        same place is the parent's, not the fork's."""
        while owner is not None and owner.parent is not None and known <= owner.first_end:
            parent = self._threads.get(owner.parent)
            if parent is None or len(parent.digests) < known or parent.digests[known - 1] != digests[known - 1]:
                break
            owner = parent
        return owner

    def _owner_at(self, digest: int, position: int) -> Thread | None:
        owner = self._owners.get(digest)
        return owner if owner is not None and len(owner.digests) > position and owner.digests[position] == digest else None

    def _go_on(self, thread: Thread, prompt: Prompt, kind: Kind, now_ms: float) -> None:
        """Extend a thread by a request."""
        fixed, before = thread.fixed, thread.cost_bytes
        if kind is Kind.RETRY:
            thread.retries += 1
        else:
            self._disown(thread, fixed)
            thread.digests, thread.sizes = prompt.digests, prompt.sizes
            self._own(thread, fixed)
            thread.fixed = prompt.fixed
            thread.retries, thread.counted = 0, False
            thread.first_call = kind is Kind.RESUMED
        thread.seen_ms = now_ms
        thread.group.threads[thread.id] = thread.group.threads.pop(thread.id)
        self._threads.move_to_end(thread.id)
        self._bytes += thread.cost_bytes - before

    def _lead_to(self, thread: Thread, key: str) -> None:
        """Let a key lead to the thread's group, for as long as some thread that came by it is remembered."""
        group = thread.group
        if self._groups.setdefault(key, group) is group:
            before = thread.cost_bytes
            thread.keys += (key,)
            group.keys[key] = group.keys.get(key, 0) + 1
            self._bytes += thread.cost_bytes - before

    def _unlead(self, thread: Thread) -> None:
        keys = thread.group.keys
        for key in thread.keys:
            keys[key] -= 1
            if not keys[key]:
                del keys[key], self._groups[key]

    def _begin(self, prompt: Prompt, match: Match, hints: ThreadHints, model: str, now_ms: float) -> Thread:
        thread = self._named(prompt, match, hints, model, now_ms)
        if match.kind is Kind.COMPACTED and match.origin is not None:
            match.origin.successors += 1
        group = thread.group
        group.threads[thread.id] = thread
        self._threads[thread.id] = thread
        self._own(thread, 0)
        self._bytes += thread.cost_bytes
        if hints.key is not None:
            for key in {hints.key, hints.group or hints.key}:
                self._lead_to(thread, key)
        return thread

    def _named(self, prompt: Prompt, match: Match, hints: ThreadHints, model: str, now_ms: float) -> Thread:
        """A new thread, not yet remembered."""
        origin = match.origin
        thread_id = self._free_id(prompt, match, hints)
        group = self._group(hints, origin, thread_id, now_ms)
        rates, fixed = self._estimator.of(model), prompt.fixed
        thread = Thread(
            thread_id, group, model, rates, prompt.digests, prompt.sizes, fixed, fixed - 1, now_ms, hints.key, hints.epoch
        )
        if origin is not None:
            thread.parent = origin.id
            thread.prefill, thread.decode, thread.placed_ms = origin.prefill, origin.decode, origin.placed_ms
            thread.tokens_per_byte, thread.output_tokens = origin.tokens_per_byte, origin.output_tokens
            thread.blocks, thread.block_tokens = _common_blocks(origin, prompt), origin.block_tokens
        elif hints.key is not None:
            thread.parent = self._spawner(hints, group)
        return thread

    def _free_id(self, prompt: Prompt, match: Match, hints: ThreadHints) -> str:
        """Of a thread key the same in every gateway and after a restart, as long as its head stays; else of the request."""
        if match.kind is Kind.COMPACTED and match.origin is not None:
            stem, _, epoch = match.origin.id.partition(".")
            return next(name for n in range(int(epoch or 1) + 1, 1 << 30) if (name := f"{stem}.{n}") not in self._threads)
        number = prompt.digests[-1]
        if hints.key is not None:
            anchor = prompt.digests[0] if hints.names_thread and match.kind is Kind.NEW else number
            number = xxhash.xxh3_64_intdigest(f"{hints.key} {anchor}".encode("utf-8", "surrogatepass"))
        while (name := f"{number & _ID_MASK:012x}") in self._threads:
            number = xxhash.xxh3_64_intdigest(name.encode(), number & _UNSIGNED)
        return name

    def _group(self, hints: ThreadHints, origin: Thread | None, thread_id: str, now_ms: float) -> Group:
        if hints.key is None:
            return Group(thread_id, thread_id, now_ms) if origin is None else origin.group
        for key in (hints.key, hints.parent, hints.group):
            if key is not None and (group := self._groups.get(key)) is not None:
                return group
        return Group(hints.group or hints.key, thread_id, now_ms)

    def _spawner(self, hints: ThreadHints, group: Group) -> str | None:
        """The thread that spawned a new one: named by the client, or the first of a session whose threads share one key."""
        if hints.parent is not None:
            return next((thread.id for thread in recent(group) if thread.key == hints.parent), None)
        return group.root if group.threads and not hints.names_thread else None

    def _own(self, thread: Thread, start: int) -> None:
        owners = self._owners
        for digest in thread.digests[start:]:
            owners[digest] = thread

    def _disown(self, thread: Thread, start: int) -> None:
        owners = self._owners
        for digest in thread.digests[start:]:
            if owners.get(digest) is thread:
                del owners[digest]

    def _evict(self, kept: Thread) -> None:
        """Forget the least recently used threads until the bound holds; never the one in use."""
        while self._bytes > self._max_bytes:
            thread = next(iter(self._threads.values()))
            if thread is kept:
                return
            del self._threads[thread.id]
            self._disown(thread, 0)
            self._bytes -= thread.cost_bytes
            del thread.group.threads[thread.id]
            self._unlead(thread)

    def _sighting(self, thread: Thread, match: Match, prompt: Prompt, scanned: Scanned[State], idle_ms: float) -> Sighting:
        tokens = TokenCounts(prompt.sizes, thread.tokens_per_byte or thread.rates.tokens_per_byte)
        output = thread.output_tokens or thread.rates.output_tokens
        limit = scanned.max_output_tokens
        return Sighting(
            thread.id,
            thread.group.name,
            match.kind,
            thread.first_call,
            prompt.digests,
            tokens,
            tokens[-1],
            prompt.known,
            tokens[prompt.known - 1] if prompt.known else 0,
            prompt.media,
            thread.parent,
            thread.group.started_ms,
            idle_ms,
            thread.retries,
            round(output if limit is None else max(min(output, limit), 1)),
            thread.prefill,
            thread.decode,
            thread.placed_ms,
            thread.blocks,
            thread.block_tokens,
            match.kind is Kind.RETRY and thread.counted,
        )


def _learn_prompt(thread: Thread, seen: Sighting, prompt_tokens: int) -> None:
    """An engine counted the prompt of a request, which need not be the thread's last one: clients send the next before a reply
    has ended, and replies end in any order."""
    if len(seen.digests) > MAX_POSITIONS:
        return  # its size is not the whole prompt's
    size = seen.tokens.prompt_bytes
    measured = thread.rates.learn_prompt(size, prompt_tokens)
    if thread.equals(seen.digests):
        thread.counted = round(size * measured) == prompt_tokens
    elif thread.counted:
        return  # what is known of the last request is exact
    thread.tokens_per_byte = measured


def _traced(scanned: Scanned[State], messages: int) -> Scanned[State]:
    """A body as far as its lineage goes."""
    if messages >= len(scanned.messages):
        return scanned
    return msgspec.structs.replace(scanned, messages=scanned.messages[:messages])


def _common_blocks(origin: Thread, prompt: Prompt) -> array[int]:
    """The blocks of what a new thread has in common with the one that it comes from, by estimate."""
    common = min(prompt.known, len(origin.sizes), len(prompt.sizes))
    while common and origin.digests[common - 1] != prompt.digests[common - 1]:
        common -= 1
    if not common or not origin.block_tokens:
        return array("q")
    tokens = origin.sizes[common - 1] * (origin.tokens_per_byte or origin.rates.tokens_per_byte)
    return origin.blocks[: int(tokens) // origin.block_tokens]
