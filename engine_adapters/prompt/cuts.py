"""Where a rendered prompt may be cut so that its parts encode apart as they do together.

A BPE tokenizer first takes the added tokens out of the text, then splits what lies between them by a pattern and merges within
each split. So the end of an added token is a safe cut, unless another added token could cover it, or it swallows spaces.
Between a newline and an ASCII letter lies a safe cut for the patterns listed here: in each a match that contains a newline
ends with it or with other space, no letter joins a newline before it, and no look-ahead changes a match that ends there (SGLang
argues alike in entrypoints/openai/parallel_prompt_encode.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

_APART_CHARS = 24  # cuts closer than this to the one before save nothing
_NEWLINES_APART_CHARS = 2048

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*",
)
_HAN = r"&&[^\p{Han}]"
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_HAN}]*[{_LOWER}{_HAN}]+{_CONTRACTION}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}{_HAN}]+[{_LOWER}{_HAN}]*{_CONTRACTION}?",
        r"\p{N}{1,3}",
        _TAIL,
    )
)
TEKKEN_PATTERN = "|".join((*_CASED, r"\p{N}", _TAIL.replace(r"[\r\n]*", r"[\r\n/]*")))
_PATTERNS = frozenset(
    {
        KIMI_PATTERN,
        TEKKEN_PATTERN,
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}",  # cl100k, Llama 3, GLM
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}",  # Qwen 2 and 3
        "|".join(  # o200k, gpt-oss
            (*(f"{part}{_CONTRACTION}?" for part in _CASED), r"\p{N}{1,3}", _TAIL.replace(r"[\r\n]*", r"[\r\n/]*"))
        ),
    }
)
GPT2 = "gpt2"
"""The pattern that is built into HF's `ByteLevel`. It may end a match inside a run of spaces, so only a lone newline counts."""

_NEWLINE = re.compile(r"(?<=\n)(?=[A-Za-z])")
_LONE_NEWLINE = re.compile(r"(?<=[!-~]\n)(?=[A-Za-z])")


class AddedToken(msgspec.Struct, frozen=True):
    """One token that is taken out of the text before it is split. `normalized`: found in a second pass only."""

    content: str
    normalized: bool = False
    swallows: bool = False  # spaces around it
    single_word: bool = False


class SafeCuts:
    """`normalizes`: the text between raw added tokens is rewritten before normalised ones are looked for."""

    def __init__(
        self, tokens: Sequence[AddedToken], *, pattern: str | None = None, normalizes: bool = False, guess: bool = False
    ) -> None:
        raw = [token.content for token in tokens if not token.normalized]
        late = [token.content for token in tokens if token.normalized and not normalizes]
        self._raw, self._late = _alternation(raw), _alternation(late)
        self._ends = frozenset(_safe_ends(tokens))
        plain = not any(token.swallows or "\n" in token.content for token in tokens)
        self._newline = _newlines(pattern) if plain else None
        self._guess = _NEWLINE if guess and self._newline is None else None

    def find(self, text: str) -> list[int]:
        """Proven cuts of `text`, ascending, neither its beginning nor its end; not all, but never far apart without need."""
        found: list[int] = []
        last = 0
        for end in self._safe_ends_in(text):
            if self._newline is not None:
                last = _spread(text, self._newline, last, end, found)
            if end - last >= _APART_CHARS and end < len(text):
                found.append(end)
                last = end
        if self._newline is not None:
            _spread(text, self._newline, last, len(text), found)
        return found

    @property
    def guessing(self) -> bool:
        return self._guess is not None

    def guesses(self, text: str) -> list[int]:
        """Likely cuts of a text between proven ones, for a pattern that is not known."""
        found: list[int] = []
        if self._guess is not None:
            _spread(text, self._guess, 0, len(text), found)
        return found

    def holds(self, text: str, at: int) -> bool:
        """Whether a cut found in a text that was equal up to `at` is a cut of this text."""
        return at == 0 or text[at - 1] != "\n" or (at < len(text) and text[at].isascii() and text[at].isalpha())

    def _safe_ends_in(self, text: str) -> Iterator[int]:
        ends = self._ends
        position = 0
        for match in self._raw.finditer(text) if self._raw is not None else ():
            if self._late is not None:
                yield from (late.end() for late in self._late.finditer(text, position, match.start()) if late.group() in ends)
            position = match.end()
            if match.group() in ends:
                yield position
        if self._late is not None:
            yield from (late.end() for late in self._late.finditer(text, position) if late.group() in ends)


def _spread(text: str, pattern: re.Pattern[str], start: int, end: int, found: list[int]) -> int:
    """Add the pattern's places in a stretch of text, some distance apart. Returns the last place added, or `start`."""
    while end - start > _NEWLINES_APART_CHARS:
        match = pattern.search(text, start + _NEWLINES_APART_CHARS, end)
        if match is None or match.start() >= end:
            break
        start = match.start()
        found.append(start)
    return start


def _alternation(words: Iterable[str]) -> re.Pattern[str] | None:
    """Leftmost, then longest: as the tokenizers find added tokens."""
    ordered = sorted({word for word in words if word}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _newlines(pattern: str | None) -> re.Pattern[str] | None:
    if pattern == GPT2:
        return _LONE_NEWLINE
    return _NEWLINE if pattern in _PATTERNS else None


def _safe_ends(tokens: Sequence[AddedToken]) -> Iterator[str]:
    """Tokens behind which a cut is safe whatever follows."""
    every = "\0".join(token.content for token in tokens)
    raw_beginnings = {token.content[:end] for token in tokens if not token.normalized for end in range(1, len(token.content))}
    single_words = any(token.single_word for token in tokens)
    for token in tokens:
        content = token.content
        if token.swallows or token.single_word or not content.strip() or content[-1].isspace():
            continue
        if single_words and (content[-1].isalnum() or content[-1] == "_"):
            continue
        if token.normalized and any(content[start:] in raw_beginnings for start in range(1, len(content))):
            continue  # a raw token could begin in it, and those are taken out first
        if not _goes_on(content, every):
            yield content


def _goes_on(content: str, every: str) -> bool:
    """Whether some added token contains this one and goes on behind it."""
    at = every.find(content)
    while at >= 0:
        end = at + len(content)
        if end < len(every) and every[end] != "\0":
            return True
        at = every.find(content, at + 1)
    return False
