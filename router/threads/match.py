"""Which remembered thread a request continues, leaves or replaces: the decision alone, over the threads it is given."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice

import msgspec

from router.threads.keys import ThreadHints
from router.threads.sighting import Kind
from router.threads.thread import Group, Thread

_SIBLINGS = 64  # threads of one session that are looked at for one request


class Prompt(msgspec.Struct, frozen=True):
    """A request's whole lineage, and the deepest position that some thread has, with that thread."""

    digests: array[int]
    sizes: array[int]
    fixed: int
    media: bool
    known: int  # positions
    owner: Thread | None


class Match(msgspec.Struct, frozen=True):
    kind: Kind
    thread: Thread | None  # the one that goes on
    origin: Thread | None  # the one that a new thread comes from


def recognise(prompt: Prompt, hints: ThreadHints, group: Group | None, resume_gap_ms: float, now_ms: float) -> Match:
    """`group`: the session that the request's key leads to, None where it leads to none yet."""
    owner = prompt.owner
    if owner is not None and _continues(owner, prompt) and _answers_to(owner, hints.key, group):
        return _going_on(owner, prompt, resume_gap_ms, now_ms)
    if group is not None and (own := _best(group, hints, prompt.digests)) is not None:
        return _going_on(own, prompt, resume_gap_ms, now_ms)
    before = _rewritten(group, hints, prompt.digests) if group is not None and hints.names_thread else None
    if before is not None and (before.epoch != hints.epoch or prompt.sizes[-1] < before.sizes[-1]):
        return Match(Kind.COMPACTED, None, before)
    if owner is not None and _leaves(owner, prompt):
        return Match(Kind.FORK, None, owner)
    return Match(Kind.NEW, None, None) if before is None else Match(Kind.COMPACTED, None, before)


def _answers_to(thread: Thread, key: str | None, group: Group | None) -> bool:
    """A request without a key may continue any thread; a nameless thread takes the first name that no other has."""
    return key is None or thread.key == key or (thread.key is None and group is None)


def _going_on(thread: Thread, prompt: Prompt, resume_gap_ms: float, now_ms: float) -> Match:
    if thread.equals(prompt.digests):
        return Match(Kind.RETRY, thread, None)
    return Match(Kind.RESUMED if now_ms - thread.seen_ms > resume_gap_ms else Kind.CONTINUED, thread, None)


def _continues(thread: Thread, prompt: Prompt) -> bool:
    """Whether the deepest known position is where the thread stopped."""
    return thread.begins(prompt.digests) or thread.equals(prompt.digests)


def _leaves(thread: Thread, prompt: Prompt) -> bool:
    """Whether a lineage has the thread's first request in common. Less is a shared preamble, and exactly that is the same
    question asked again."""
    known = prompt.known
    return known > 1 and known > thread.first_end + (known == len(prompt.digests))


def recent(group: Group) -> Iterator[Thread]:
    """The session's threads, most recently used first; a client that gives all of its threads one key must not cost more."""
    return islice(reversed(group.threads.values()), _SIBLINGS)


def _best(group: Group, hints: ThreadHints, digests: array[int]) -> Thread | None:
    """The thread of this key that a lineage continues the furthest, though another session may have had the same since."""
    best: Thread | None = None
    for thread in recent(group):
        if thread.key != hints.key:
            continue
        if thread.equals(digests):
            return thread
        if thread.begins(digests) and (best is None or thread.fixed > best.fixed):
            best = thread
    return best


def _rewritten(group: Group, hints: ThreadHints, digests: array[int]) -> Thread | None:
    """The thread that the client calls by the same name, when a request that does not continue it has the same tools and
    system prompt. Calls without either (titles, summaries) are alike in nothing but their model."""
    for thread in recent(group):
        if thread.key == hints.key and thread.digests[0] == digests[0]:
            return thread if thread.sizes[0] else None
    return None
