"""A model's tokenizer, as HF transformers' fast tokenizers behave, read from `tokenizer.json`.

Text to token ids and back; nothing of templates or engines.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers

from engine_adapters.prompt.cuts import GPT2, AddedToken, SafeCuts
from engine_adapters.prompt.encoded import UNPROVEN, Encoded, encoded_of

FILE_NAME = "tokenizer.json"

_BATCH_CHARS = 65_536

# What acts on each piece of the text by itself, wherever that stands (SGLang's list).
_POSITIONLESS = frozenset(
    {
        "ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer",
        "CharDelimiterSplit", "UnicodeScripts",
    }
)  # fmt: skip
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "StripAccents", "ByteLevel"})


class Tokenizer:
    """Thread-safe; every way of encoding releases the interpreter while it works (`tokenizers.encode` alone would not)."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_token: str | None = None) -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_id: int | None = backend.token_to_id(eos_token) if eos_token else None
        self.adds_specials = bool(backend.encode("").ids)
        self._vocab_size = int(backend.get_vocab_size(with_added_tokens=True))
        self.cuts = cuts_of(backend)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises ValueError naming the folder when `tokenizer.json` is missing or unreadable."""
        file = folder / FILE_NAME
        if not file.exists():
            raise ValueError(f"{folder} has no {FILE_NAME}; give a model folder in Hugging Face layout")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the binding raises no narrower one
            raise ValueError(f"{file} cannot be read: {error}") from error
        return cls(backend, eos_token_of(folder))

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def special_tokens(self) -> list[str]:
        """Every token that is taken out of a text before it is split, by id."""
        return [token.content for _, token in sorted(self._backend.get_added_tokens_decoder().items())]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in it become their ids, as transformers does by default."""
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered chat prompt, which already holds every special token it needs."""
        return self.encode(text, add_special_tokens=not self.adds_specials)

    def resume(self, text: str, at: int = 0, carry: int = 0) -> Encoded:
        """See `PromptTokenizer`. Where the text is cut depends on the text alone, so `at` and `carry` do not matter here."""
        ids = array("I")
        cuts: list[tuple[int, int, int]] = []
        for edges in _batches([0, *self.cuts.find(text), len(text)]):
            pieces = [text[start:end] for start, end in pairwise(edges)]
            for start, piece, encoding in zip(edges, pieces, self._encode_pieces(pieces), strict=False):
                if start:
                    cuts.append((start, len(ids), 0))
                cuts += [(start + char, len(ids) + token, UNPROVEN) for char, token in self._guessed(piece, encoding)]
                ids.extend(encoding.ids)
        return encoded_of(ids, cuts)

    def holds(self, text: str, at: int) -> bool:
        return self.cuts.holds(text, at)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def _encode_pieces(self, pieces: list[str]) -> Sequence[tokenizers.Encoding]:
        backend = self._backend
        encode = backend.encode_batch if self.cuts.guessing else backend.encode_batch_fast  # the latter knows no offsets
        try:
            encodings: Sequence[tokenizers.Encoding] = encode(pieces, add_special_tokens=False)
        except TypeError as error:  # how the binding calls a string that is no Unicode text
            raise ValueError(f"the prompt has lone surrogates, which are no text: {error}") from error
        return encodings

    def _guessed(self, piece: str, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
        """Likely cuts of one piece that also begin a token: (characters, tokens)."""
        found = []
        for char in self.cuts.guesses(piece):
            token = encoding.char_to_token(char)
            span = encoding.token_to_chars(token) if token is not None else None
            if token is not None and span is not None and span[0] == char:
                found.append((char, token))
        return found


def _batches(edges: list[int]) -> Iterator[list[int]]:
    """Edges of pieces, some 64 KB of text at a time: handing them over and taking the ids holds the interpreter."""
    first = 0
    for place in range(1, len(edges)):
        if edges[place] - edges[first] >= _BATCH_CHARS or place == len(edges) - 1:
            yield edges[first : place + 1]
            first = place


def eos_token_of(folder: Path) -> str | None:
    """The name of the end-of-sequence token in `tokenizer_config.json`."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    eos = config.get("eos_token")
    return eos.get("content") if isinstance(eos, dict) else eos


def cuts_of(backend: tokenizers.Tokenizer) -> SafeCuts:
    """Where this tokenizer's texts may be cut. One that treats the beginning of a text specially has no cuts at all."""
    config = json.loads(backend.to_str())
    if not _positionless(config):
        return SafeCuts(())
    added = [
        AddedToken(token.content, token.normalized, token.lstrip or token.rstrip, token.single_word)
        for token in backend.get_added_tokens_decoder().values()
        if token.content
    ]
    return SafeCuts(added, pattern=_pattern(config), normalizes=config.get("normalizer") is not None, guess=True)


def _positionless(config: Mapping[str, Any]) -> bool:
    steps = _steps(config.get("pre_tokenizer"), "pretokenizers")
    normalizers = _steps(config.get("normalizer"), "normalizers")
    model = config.get("model") or {}
    return (
        all(step.get("type") in _POSITIONLESS for step in steps)
        and all(step.get("type") in _LOCAL_NORMALIZERS for step in normalizers)
        and not any(step.get("add_prefix_space") for step in steps)
        and not model.get("dropout")
    )


def _pattern(config: Mapping[str, Any]) -> str | None:
    """The splitting pattern where it and the model are of the kind for which newline cuts are proven."""
    if (config.get("model") or {}).get("type") != "BPE" or any(
        step.get("type") != "NFC" for step in _steps(config.get("normalizer"), "normalizers")
    ):
        return None
    match _steps(config.get("pre_tokenizer"), "pretokenizers"):
        case [{"type": "ByteLevel", "use_regex": True}]:
            return GPT2
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, byte_level]:
            whole = byte_level.get("type") == "ByteLevel" and not byte_level.get("use_regex", True)
            return str(pattern) if whole else None
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": True}, byte_level]:
            whole = byte_level.get("type") == "ByteLevel" and not byte_level.get("use_regex", True)
            return str(pattern) if whole else None
        case _:
            return None


def _steps(config: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if config is None:
        return []
    return (
        [step for inner in config.get(key, []) for step in _steps(inner, key)] if config.get("type") == "Sequence" else [config]
    )
