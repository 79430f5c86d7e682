"""What the delta asks of a tokenizer: the ids of a text, and after which characters of it encoding may be taken up again.

A cut is such a place. Cuts behind a special token, or between a newline and a letter where the splitting pattern is known, are
proven: what is left of them and what is right of them encode to the same ids apart as together. Others are only likely; their
carry has `UNPROVEN` set, and who resumes there encodes a stretch before them too and compares.
"""

from __future__ import annotations

from array import array
from typing import Protocol

import msgspec

UNPROVEN = 1 << 31


class Encoded(msgspec.Struct, frozen=True):
    """`ids`: typecode I. The cuts ascend: `cut_chars[i]` characters into the text `cut_tokens[i]` ids are complete, and
    `cut_carries[i]` is what the tokenizer wants back to resume there. All typecode I."""

    ids: array[int]
    cut_chars: array[int]
    cut_tokens: array[int]
    cut_carries: array[int]


class PromptTokenizer(Protocol):
    """Thread-safe. Encoding long texts releases the interpreter."""

    @property
    def vocab_size(self) -> int:
        """Ids that can occur are below this."""

    def resume(self, text: str, at: int = 0, carry: int = 0) -> Encoded:
        """The ids of the end of a rendered prompt, from a cut (or the beginning) on.

        `at`: characters of the prompt before `text`; `carry`: the cut's. Special tokens written in the text become their ids,
        none is added. Raises ValueError for what no engine takes (lone surrogates, texts that the pattern cannot split).
        """

    def holds(self, text: str, at: int) -> bool:
        """Whether a cut of a text that was equal up to character `at` is also one of this text."""


def encoded_of(ids: array[int], cuts: list[tuple[int, int, int]]) -> Encoded:
    """`cuts`: (characters, tokens, carry), ascending."""
    columns = [array("I", column) for column in zip(*cuts, strict=True)] if cuts else [array("I")] * 3
    return Encoded(ids, *columns)


def encode_whole(tokenizer: PromptTokenizer, text: str) -> array[int]:
    """All ids of a rendered prompt."""
    return tokenizer.resume(text).ids


def refuse_surrogates(text: str) -> None:
    """Raises ValueError for a string that is no Unicode text; some tokenizers would quietly replace what is wrong with it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the prompt has a lone surrogate at character {error.start}, which is no text") from error
