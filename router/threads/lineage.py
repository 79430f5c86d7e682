"""Lineages: for each message one digest that names everything up to it.

`chain` runs over the canonical messages alone, so that it can be resumed in the middle of a body whose tools come last; the
head (model, tools, system prompt, cache namespace) is mixed into every digest at the end. Equal digests mean equal prompts up
to there; 64 bits, made of xxh3.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash
from msgspec import Raw

from router.body.recency import RecentMap
from router.body.scanned import Scanned
from router.dialects.dialect import DialectName
from router.threads.canon import Canonical, canonical_json, canonical_message, canonical_system, canonical_text

MAX_POSITIONS = 20_000
"""Messages of one body that are told apart; what is behind them is served, but not traced: no honest prompt is that long."""

_MAX_SIZE = (1 << 32) - 1  # what the arrays of sizes hold: parts without text can count for more than they weigh
_PROMPT_BLOCK_BYTES = 2048  # a completion prompt has no messages: its raw text is cut here
_NO_DIGEST = b"\0" * 16
_SIGN = 1 << 63
_ABSENT = Canonical(_NO_DIGEST, 0, False)
_NO_DIGESTS = _NO_DIGEST * 2


class State(msgspec.Struct, frozen=True, gc=False):
    """Where a lineage stands after some message: what a memo keeps. The head is not part of it."""

    chain: int = 0  # unsigned
    positions: int = 0  # messages that have a canonical form
    size: int = 0  # their canonical bytes
    media: bool = False


START = State()


class Lineage(msgspec.Struct, frozen=True):
    """`digests[i]` belongs to position `base.positions + 1 + i`: only what was parsed. `sizes` are cumulative, with the head.

    Positions from `open_from` on are not fixed yet: their text goes on in the thread's next request (a completion prompt).
    Nothing is told of what lies behind the first `MAX_POSITIONS` messages.
    """

    head: int  # digest of position 0, signed
    head_size: int
    base: State
    base_digest: int  # of position `base.positions`
    digests: list[int]
    sizes: list[int]
    media: bool
    open_from: int | None
    states: list[State] | None  # after each traced message, also those without a canonical form, where a memo wants them


class Tracer:
    """Turns scans into lineages. Remembers the canonical form of recent raw messages, tools and systems, by their hash."""

    def __init__(self, capacity: int = 16_384) -> None:
        self._forms: RecentMap[bytes, Canonical] = RecentMap(capacity)

    def trace(self, scanned: Scanned[State]) -> Lineage:
        head, head_size = self._head(scanned)
        base = scanned.checkpoint.state if scanned.checkpoint is not None else START
        chain, positions, size, media = base.chain, base.positions, base.size, base.media
        states: list[State] | None = [] if scanned.walk is not None else None
        digests: list[int] = []
        sizes: list[int] = []
        for form in self._forms_of(scanned):
            if form is not None:
                chain = link(chain, form)
                positions += 1
                size += form.size
                media = media or form.media
                digests.append(signed(chain ^ head))
                sizes.append(min(head_size + size, _MAX_SIZE))
            if states is not None:
                states.append(State(chain, positions, size, media))
        open_from = positions if scanned.dialect.name is DialectName.COMPLETIONS and digests else None
        base_digest = signed(base.chain ^ head)
        return Lineage(signed(head), head_size, base, base_digest, digests, sizes, media, open_from, states)

    def _forms_of(self, scanned: Scanned[State]) -> list[Canonical | None]:
        prompt = scanned.prompt
        if prompt is None:
            room = max(MAX_POSITIONS - scanned.first_message, 0)
            return [self._message(raw) for raw in scanned.messages[:room]]
        if isinstance(prompt, Raw):
            return _prompt_blocks(bytes(prompt))
        return [canonical_text(prompt)]

    def _message(self, raw: Raw) -> Canonical | None:
        key = xxhash.xxh3_128_digest(raw)
        form = self._forms.get(key)
        if form is None:
            form = canonical_message(raw)
            if form is not None:
                self._forms.put(key, form)
        return form

    def _head(self, scanned: Scanned[Any]) -> tuple[int, int]:
        """Digest (unsigned) and canonical size of what a prompt begins with."""
        tools, system = scanned.tools, scanned.system
        named = scanned.model.encode()
        if space := scanned.cache_namespace:
            named += b"\0" + msgspec.json.encode(space)
        if scanned.members.previous_response_id is not msgspec.UNSET:
            named += b"\1" + msgspec.json.encode(scanned.members.previous_response_id)
        if tools is None and system is None:
            return xxhash.xxh3_64_intdigest(_NO_DIGESTS + named), 0
        first, second = self._part(b"tools", tools, canonical_json), self._part(b"system", system, canonical_system)
        size = min(first.size + second.size, _MAX_SIZE)
        return xxhash.xxh3_64_intdigest(first.digest + second.digest + named), size

    def _part(self, kind: bytes, raw: Raw | bytes | None, form_of: Any) -> Canonical:
        if raw is None or len(raw) <= 2:  # "" and [] say as little as nothing
            return _ABSENT
        key = kind + xxhash.xxh3_128_digest(raw)
        form = self._forms.get(key)
        if form is None:
            form = form_of(raw)
            self._forms.put(key, form)
        return form


def link(chain: int, form: Canonical) -> int:
    """The chain after one more message; unsigned."""
    return xxhash.xxh3_64_intdigest(form.digest, chain)


def signed(digest: int) -> int:
    """An unsigned 64-bit value as the signed one that arrays and the index hold."""
    return (digest ^ _SIGN) - _SIGN


def _prompt_blocks(raw: bytes) -> list[Canonical | None]:
    """A raw prompt (text, ids or a batch) in blocks, without its closing quote or bracket, so that a prompt that grows keeps
    all blocks but the last."""
    raw = raw[:-1][: MAX_POSITIONS * _PROMPT_BLOCK_BYTES]
    blocks = (raw[start : start + _PROMPT_BLOCK_BYTES] for start in range(0, len(raw), _PROMPT_BLOCK_BYTES))
    return [Canonical(xxhash.xxh3_128_digest(block), len(block), False) for block in blocks]
