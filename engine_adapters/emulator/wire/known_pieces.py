"""Token ids of prompts, piece by piece: what an earlier prompt had as well is not tokenized again.

A real engine tokenizes in a process of its own; here it would hold up the loop that keeps the engine's time. Pieces lie between
cuts at which a text's parts encode apart as they do together, so that the ids are the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import pairwise

from engine_adapters.prompt.tokenizer import Tokenizer

_MAX_CHARS = 16 << 20


class KnownPieces:
    """Thread-safe. Bounded by the characters of the pieces; the least recently used go first."""

    def __init__(self, tokenizer: Tokenizer, max_chars: int = _MAX_CHARS) -> None:
        self._tokenizer = tokenizer
        self._max_chars = max_chars
        self._ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """As `Tokenizer.encode_prompt`."""
        edges = [0, *self._tokenizer.cuts.find(text), len(text)]
        return tuple(token for start, end in pairwise(edges) for token in self._piece(text[start:end]))

    def _piece(self, piece: str) -> tuple[int, ...]:
        known = self._take(piece)
        if known is None:
            known = tuple(self._tokenizer.encode(piece, add_special_tokens=False))
        self._keep(piece, known)
        return known

    def _take(self, piece: str) -> tuple[int, ...] | None:
        with self._lock:
            known = self._ids.pop(piece, None)
            if known is not None:
                self._chars -= len(piece)
            return known

    def _keep(self, piece: str, ids: tuple[int, ...]) -> None:
        with self._lock:
            if piece not in self._ids:
                self._chars += len(piece)
            self._ids[piece] = ids
            while self._chars > self._max_chars:
                old, _ = self._ids.popitem(last=False)
                self._chars -= len(old)
