"""Kimi's tokenizer: a `tiktoken.model` file of ranks, special tokens numbered behind them, and a splitting of long texts.

Its code in the model folder (`tokenization_kimi.py`, never run here) cuts a text after every 400,000 characters and within runs
of more than 25,000 characters that are all space or all not, and gives the parts to tiktoken. Engines reach it in two ways, and
they differ in what a text is: SGLang 0.5.23 hands over the whole prompt, vLLM through transformers what lies between the named
special tokens. Both are here, to the character.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
import tiktoken

from engine_adapters.prompt.cuts import KIMI_PATTERN, AddedToken, SafeCuts
from engine_adapters.prompt.encoded import Encoded, encoded_of, refuse_surrogates

FILE_NAME = "tiktoken.model"
_RESERVED = 256
_CHUNK_CHARS = 400_000
_RUN_CHARS = 25_000
_SPACE, _OTHER = re.compile(r"\s"), re.compile(r"\S")


class LongTexts(StrEnum):
    """What the 400,000 and the 25,000 characters are counted in."""

    WHOLE = "whole"  # the prompt: SGLang
    BETWEEN_SPECIALS = "between_specials"  # each text between two named special tokens: vLLM


class KimiTokenizer:
    """Thread-safe. A cut's carry is the length of the run that it lies in (WHOLE), or characters since the last named token."""

    def __init__(self, ranks: Mapping[bytes, int], named: Mapping[str, int], long_texts: LongTexts) -> None:
        """`named`: special tokens by name. Raises ValueError when one contains another: their order would matter."""
        first = len(ranks)
        names = {number: name for name, number in named.items()}
        self._specials = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(first, first + _RESERVED)}
        self._special = re.compile("|".join(map(re.escape, self._specials)))
        self._named = re.compile("|".join(map(re.escape, named)))
        self._long_texts = long_texts
        self._encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=dict(ranks), special_tokens={})
        self._vocab_size = first + _RESERVED
        for name in self._specials:
            if sum(name in other for other in self._specials) > 1:
                raise ValueError(f"special token {name!r} is part of another one")
        cutting = named if long_texts is LongTexts.BETWEEN_SPECIALS else self._specials
        self._cuts = SafeCuts([AddedToken(name) for name in cutting], pattern=KIMI_PATTERN)

    @classmethod
    def from_folder(cls, folder: Path, long_texts: LongTexts) -> KimiTokenizer:
        """Raises ValueError naming what the folder lacks."""
        config = folder / "tokenizer_config.json"
        if not config.exists():
            raise ValueError(f"{folder} has {FILE_NAME} but no {config.name}, which names the special tokens")
        added = json.loads(config.read_text(encoding="utf-8")).get("added_tokens_decoder") or {}
        named = {token["content"]: int(number) for number, token in added.items()}
        if not named:
            raise ValueError(f"{config} has no added_tokens_decoder, which names the special tokens")
        return cls(read_ranks(folder / FILE_NAME), named, long_texts)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def resume(self, text: str, at: int = 0, carry: int = 0) -> Encoded:
        """See `PromptTokenizer`."""
        refuse_surrogates(text)
        ids = array("I")
        cuts: list[tuple[int, int, int]] = []
        for stretch in self._calls(text, at, carry):
            self._encode_stretch(text, stretch, ids, cuts)
        return encoded_of(ids, cuts)

    def holds(self, text: str, at: int) -> bool:
        return self._cuts.holds(text, at)

    def _calls(self, text: str, at: int, carry: int) -> Iterator[_Stretch]:
        """What tiktoken gets in one call each."""
        if self._long_texts is LongTexts.WHOLE:
            yield from _stretches(text, 0, len(text), at, carry)
            return
        start, before = 0, carry
        for match in self._named.finditer(text):
            yield from _stretches(text, start, match.start(), before, 0)
            yield _Stretch(match.start(), match.end(), 0, 0, is_token=True)
            start, before = match.end(), 0
        yield from _stretches(text, start, len(text), before, 0)

    def _encode_stretch(self, text: str, stretch: _Stretch, ids: array[int], cuts: list[tuple[int, int, int]]) -> None:
        """Cut further where that is proven to make no difference."""
        part = text[stretch.start : stretch.end]
        last, run = 0, stretch.run
        whole = self._long_texts is LongTexts.WHOLE
        for cut in self._cuts.find(part):
            piece = part[last:cut]
            self._encode_piece(piece, ids)
            run = run + len(piece) if (tail := _word_at_end(piece)) == len(piece) else tail
            cuts.append((stretch.start + cut, len(ids), run if whole else stretch.before + cut))
            last = cut
        self._encode_piece(part[last:], ids)
        if stretch.is_token and stretch.end < len(text):
            cuts.append((stretch.end, len(ids), 0))

    def _encode_piece(self, text: str, ids: array[int]) -> None:
        start = 0
        for match in self._special.finditer(text):
            ids.extend(self._encoding.encode_ordinary(text[start : match.start()]))
            ids.append(self._specials[match.group()])
            start = match.end()
        ids.extend(self._encoding.encode_ordinary(text[start:]))


class _Stretch(msgspec.Struct, frozen=True):
    start: int
    end: int
    run: int  # characters other than space that count as directly before it
    before: int  # characters before it in the text that long texts are counted in
    is_token: bool = False


def read_ranks(file: Path) -> dict[bytes, int]:
    """Lines of base64 token and rank; ranks are 0, 1, 2, … in order. Raises ValueError naming the line."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines()):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise ValueError(f"{file} line {number + 1} is not a token in base64 and its rank") from error
        if int(rank) != number or len(ranks) != number + 1:
            raise ValueError(f"{file} line {number + 1}: ranks must count up from 0 and tokens differ")
    return ranks


def _stretches(text: str, start: int, end: int, before: int, run: int) -> Iterator[_Stretch]:
    """A text in chunks, and those cut within overlong runs. `run` counts where the text begins in the middle of a chunk."""
    while start < end:
        room = _CHUNK_CHARS - before % _CHUNK_CHARS
        stop = min(start + room, end)
        run = run if room < _CHUNK_CHARS else 0
        last = start
        for split in _splits(text[start:stop], run):
            if split:
                yield _Stretch(last, start + split, run, before + last - start)
            last, run = start + split, 0
        yield _Stretch(last, stop, run, before + last - start)
        before, start, run = before + stop - start, stop, 0


def _splits(chunk: str, run: int) -> list[int]:
    """Where a run of one kind exceeds the limit. Any such run covers a multiple of the limit, or begins the chunk."""
    found: list[int] = []
    if len(chunk) + run <= _RUN_CHARS:
        return found
    at, known_end = 0, 0
    while at < len(chunk):
        space = chunk[at].isspace()
        change = (_OTHER if space else _SPACE).search(chunk, at)
        end = change.start() if change else len(chunk)
        before = chunk[known_end:at]
        begin = at - (len(before) - len(before.rstrip()) if space else _word_at_end(before))
        counted = run if begin == 0 and not space else 0
        found += range(begin + _RUN_CHARS - counted, end, _RUN_CHARS)
        at, known_end = -(-end // _RUN_CHARS) * _RUN_CHARS, end
    return found


def _word_at_end(text: str) -> int:
    """Length of the run of characters other than space at the end."""
    return len(text.rsplit(None, 1)[-1]) if text and not text[-1].isspace() else 0
