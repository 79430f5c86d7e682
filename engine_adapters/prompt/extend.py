"""Takes a tokenised prompt to its next version: finds how far both agree, tokenises and hashes only what follows.

The agreement is found by digests of the pieces between cuts, so the point that is gone back to always is a cut. Where it is
cheap, and always where the cut is not proven, the piece before it is encoded again and must give the ids that are known.
"""

from __future__ import annotations

from array import array

import msgspec

from engine_adapters.prompt.encoded import UNPROVEN, Encoded, PromptTokenizer
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.loop_watch import LoopTrace
from engine_adapters.prompt.rope import Rope
from engine_adapters.prompt.state import (
    CUT_CARRY,
    CUT_CHARS,
    CUT_DIGEST,
    CUT_TOKENS,
    PromptState,
    checkpoint_stride,
    empty_state,
)
from kvtier.hashing.chain import BlockChain

_CHECKED_CHARS = 1024
_LOW = 0xFFFF_FFFF


class Change(msgspec.Struct, frozen=True):
    """A prompt, told from character `at` on. Its first `sure` characters are those of the state before (at <= sure).

    `appended`: text whose ids follow those of the prompt, encoded by itself. The messages from number `first` on have these
    rows (see `PromptState`).
    """

    text: str
    at: int
    sure: int
    appended: str
    head: bytes
    trace: LoopTrace | None
    first: int
    raw_keys: array[int]
    messages: array[int]


class Unreachable(Exception):
    """No cut of the state before lies in the text that was given: the whole text is needed."""


class Desync(Exception):
    """Ids that were known came out differently: the state before, or a cut, is wrong. `token`: the first that differs."""

    def __init__(self, token: int) -> None:
        super().__init__(f"token {token} came out differently when it was encoded again")
        self.token = token


def extend(
    base: PromptState | None, change: Change, tokenizer: PromptTokenizer, root: BlockChain, hasher: Hasher, *, keep_ids: bool
) -> PromptState:
    """The state of the changed prompt; `base` stays as it is. Raises Unreachable, Desync, or ValueError as the tokenizer does.

    `keep_ids` False: no ids are kept, and going on encodes a few hundred tokens more to find the place again.
    """
    if base is None or (not base.has_ids and (keep_ids or base.root != root)):
        if change.at:
            raise Unreachable
        base = empty_state(root)
    return _Extension(base, change, tokenizer, root, hasher).result(keep_ids=keep_ids)


def reach_back(base: PromptState, sure: int, root: BlockChain) -> int:
    """From which character on `extend` must be given the text when `sure` characters are equal. 0: all of it."""
    if base.root != root and not base.has_ids:
        return 0
    kept = base.cuts.count_to(sure, CUT_CHARS)
    if base.has_ids:
        return _cut(base, kept - 1 if kept > 1 else kept)[0]
    return _cut(base, _start_without_ids(base, kept))[0]


class _Plan(msgspec.Struct, frozen=True):
    """`kept` cuts stay, encoding begins behind the first `start` of them, hashing behind `pages` blocks."""

    kept: int
    start: int
    pages: int


class _Extension:
    def __init__(self, base: PromptState, change: Change, tokenizer: PromptTokenizer, root: BlockChain, hasher: Hasher) -> None:
        self._base = base
        self._change = change
        self._tokenizer = tokenizer
        self._root = root
        self._hasher = hasher

    def result(self, *, keep_ids: bool) -> PromptState:
        base, change = self._base, self._change
        plan = self._plan()
        encoded = self._encode(plan)
        start_tokens, kept_tokens = _cut(base, plan.start)[1], _cut(base, plan.kept)[1]
        new_ids = encoded.ids
        if change.appended:
            new_ids = new_ids + self._tokenizer.resume(change.appended).ids
        blocks, digests = self._hash(plan, new_ids, start_tokens)
        ids = base.ids.prefix(kept_tokens).appended(new_ids[kept_tokens - start_tokens :]) if keep_ids else Rope("I")
        return PromptState(
            self._root,
            change.head,
            change.trace,
            change.at + len(change.text),
            start_tokens + len(new_ids),
            ids,
            blocks,
            digests,
            base.cuts.prefix(plan.kept).appended(self._new_cuts(encoded, plan)),
            base.raw_keys.prefix(change.first).appended(change.raw_keys),
            base.messages.prefix(change.first).appended(change.messages),
        )

    def _plan(self) -> _Plan:
        kept = self._base.cuts.count_to(self._change.sure, CUT_CHARS)
        while kept < len(self._base.cuts) and self._equal_up_to(kept):
            kept += 1
        for count in range(kept, self._base.cuts.count_to(self._change.at, CUT_CHARS), -1):
            plan = self._plan_with_ids(count) if self._base.has_ids else self._plan_without_ids(count)
            if plan is not None:
                return plan
        if self._change.at:
            raise Unreachable
        return _Plan(0, 0, 0)

    def _plan_with_ids(self, kept: int) -> _Plan | None:
        """Behind cut `kept`, from the one before where its piece is short or must be checked, and is at hand."""
        base, change = self._base, self._change
        if not self._stands(kept):
            return None
        chars, tokens = _cut(base, kept)
        before = _cut(base, kept - 1)[0]
        unproven = bool(base.cuts.number(kept - 1, CUT_CARRY) & UNPROVEN)
        at_hand = before > change.at or before == change.at == 0
        if unproven and not at_hand:
            return None
        start = kept - 1 if at_hand and (unproven or chars - before <= _CHECKED_CHARS) else kept
        return _Plan(kept, start, self._restart(tokens))

    def _plan_without_ids(self, kept: int) -> _Plan | None:
        """Where no ids are known, what is hashed again must be encoded again."""
        start = _start_without_ids(self._base, kept)
        if not start or not self._stands(start):
            return None
        return _Plan(start, start, self._restart(_cut(self._base, kept)[1]))

    def _stands(self, kept: int) -> bool:
        """Whether cut `kept` lies in the text that was given, and is a cut there too."""
        at = _cut(self._base, kept)[0] - self._change.at
        return at > 0 and self._tokenizer.holds(self._change.text, at)

    def _equal_up_to(self, index: int) -> bool:
        """Whether the new text has the piece before cut `index` as well; the one before that is known to be equal."""
        change = self._change
        row = self._base.cuts.row(index)
        start, end = _cut(self._base, index)[0] - change.at, row[CUT_CHARS] - change.at
        if start < 0 or end > len(change.text):
            return False
        return self._hasher.piece(change.text[start:end]) == row[CUT_DIGEST] | row[CUT_DIGEST + 1] << 32

    def _encode(self, plan: _Plan) -> Encoded:
        """The text behind cut `start`, encoded. What was known of it must come out again."""
        base = self._base
        chars, tokens = _cut(base, plan.start)
        carry = base.cuts.number(plan.start - 1, CUT_CARRY) & ~UNPROVEN if plan.start else 0
        encoded = self._tokenizer.resume(self._change.text[chars - self._change.at :], chars, carry)
        known = base.ids.slice(tokens, _cut(base, plan.kept)[1]) if plan.start < plan.kept else array("I")
        if encoded.ids[: len(known)] != known:
            differing = next((i for i, (a, b) in enumerate(zip(known, encoded.ids, strict=False)) if a != b), len(encoded.ids))
            raise Desync(tokens + differing)
        return encoded

    def _new_cuts(self, encoded: Encoded, plan: _Plan) -> array[int]:
        """Rows of the cuts behind those that are kept."""
        at = self._change.at
        first_chars, first_tokens = _cut(self._base, plan.start)
        last = _cut(self._base, plan.kept)[0]
        rows = array("I")
        for chars, tokens, carry in zip(encoded.cut_chars, encoded.cut_tokens, encoded.cut_carries, strict=True):
            cut = first_chars + chars
            if cut > last:
                digest = self._hasher.piece(self._change.text[last - at : cut - at])
                rows.extend((cut, first_tokens + tokens, carry, digest & _LOW, digest >> 32))
                last = cut
        return rows

    def _hash(self, plan: _Plan, new_ids: array[int], new_from: int) -> tuple[Rope, Rope]:
        """Blocks and kept digests. `new_ids` are the ids from token `new_from` on."""
        base, root, done = self._base, self._root, plan.pages
        stride = checkpoint_stride(root)
        first = done * root.page_size
        known = base.ids.slice(first, new_from) if first < new_from else array("I")
        chain = root.resumed(done, base.digests.row(done // stride - 1).tobytes() if done else b"", known)
        _, digests = chain.extend_digests(new_ids[max(first - new_from, 0) :])
        kept = array("B")
        for page, digest in enumerate(digests, done + 1):
            if page % stride == 0:
                kept.frombytes(digest)
        if not done:
            return Rope("q").appended(root.ids(digests)), Rope("B", root.digest_bytes).appended(kept)
        return base.blocks.prefix(done).appended(root.ids(digests)), base.digests.prefix(done // stride).appended(kept)

    def _restart(self, tokens: int) -> int:
        """Blocks that need not be hashed again when the first `tokens` tokens stay."""
        return _restart(self._base, tokens) if self._base.root == self._root else 0


def _start_without_ids(base: PromptState, kept: int) -> int:
    """The proven cut to encode from so that everything is known that must be hashed again when `kept` cuts stay."""
    start = base.cuts.count_to(_restart(base, _cut(base, kept)[1]) * base.root.page_size, CUT_TOKENS)
    while start and base.cuts.number(start - 1, CUT_CARRY) & UNPROVEN:
        start -= 1
    return start


def _restart(base: PromptState, tokens: int) -> int:
    stride = checkpoint_stride(base.root)
    return base.root.full_pages(tokens) // stride * stride


def _cut(base: PromptState, kept: int) -> tuple[int, int]:
    """Characters and tokens up to the end of the first `kept` cuts."""
    if not kept:
        return 0, 0
    row = base.cuts.row(kept - 1)
    return row[CUT_CHARS], row[CUT_TOKENS]
