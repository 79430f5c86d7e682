"""The same ids as `Tokenizer`, from fastokens: another implementation of `tokenizer.json`, some twenty times faster.

It is optional and believed only after it gave the same ids as HF's on texts that are hard to split: a difference there makes
loading fail, and what it does later is checked as every delta is.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from engine_adapters.prompt.encoded import Encoded, encoded_of
from engine_adapters.prompt.tokenizer import FILE_NAME, Tokenizer

_HARD = (
    "a", "É", "é", "ß", "\u017f", "İ", "中", "文", "ア", "한", "😀", "👩\u200d👩\u200d👧", "\u0301", "1", "23", "٣", "'s", "'S",
    "'ll", "_", "!!", '{"', " ", "  ", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u200b", "\u2028",
    "\u3000", "\0", "\ufeff", "<|", "|>", "word",
)  # fmt: skip
_HARD_TEXTS = 2000
_SEED = 20261130


class _Backend(Protocol):
    def encode_batch_flat(self, inputs: Sequence[str], add_special_tokens: bool = False) -> tuple[bytes, bytes]: ...


class FastTokenizer:
    """Thread-safe. Make one with `proven`."""

    def __init__(self, backend: _Backend, reference: Tokenizer) -> None:
        self._backend = backend
        self._cuts = reference.cuts
        self._vocab_size = reference.vocab_size

    @classmethod
    def proven(cls, folder: Path, reference: Tokenizer, texts: Iterable[str] = ()) -> FastTokenizer:
        """Compared with `reference` on hard texts and on `texts`. Raises ValueError when it is missing or not the same."""
        try:
            backend: _Backend = import_module("fastokens").Tokenizer.from_file(str(folder / FILE_NAME))
        except ImportError as error:
            raise ValueError("fastokens is not installed: pip install loadback[fast], or leave it off") from error
        except Exception as error:  # the binding raises no narrower one for a file that it does not support
            raise ValueError(f"fastokens cannot read {folder / FILE_NAME}: {error}") from error
        if reference.cuts.guessing:
            raise ValueError(f"fastokens knows no offsets, which the splitting pattern of {folder} needs; leave it off")
        fast = cls(backend, reference)
        for text in (*hard_texts(reference.special_tokens), *texts):
            if fast.resume(text).ids.tolist() != reference.encode(text, add_special_tokens=False):
                raise ValueError(f"fastokens and tokenizers disagree on {text[:80]!r}; leave it off for this model")
        return fast

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def resume(self, text: str, at: int = 0, carry: int = 0) -> Encoded:
        """See `PromptTokenizer`."""
        edges = [0, *self._cuts.find(text), len(text)]
        try:
            data, ends = self._backend.encode_batch_flat([text[start:end] for start, end in pairwise(edges)])
        except TypeError as error:  # how the binding calls a string that is no Unicode text
            raise ValueError(f"the prompt has lone surrogates, which are no text: {error}") from error
        tokens = memoryview(ends).cast("Q")
        return encoded_of(array("I", data), [(char, tokens[i + 1], 0) for i, char in enumerate(edges[1:-1])])

    def holds(self, text: str, at: int) -> bool:
        return self._cuts.holds(text, at)


def hard_texts(special_tokens: Sequence[str], count: int = _HARD_TEXTS) -> list[str]:
    """Random strings of what splits and merges badly, the same in every run."""
    rng = random.Random(_SEED)
    parts = (*_HARD, *special_tokens[:64], *(name[:-1] for name in special_tokens[:16]))
    return ["".join(rng.choices(parts, k=rng.randint(1, 40))) for _ in range(count)]
