"""Mistral's `tekken.json` as a tokenizer of rendered text: the ids that a Hugging Face conversion of the same file gives.

mistral-common's own chat encoding, which never renders a text, is another thing; engines use it in their "mistral" tokenizer
mode only. Layout: ranks of byte strings, special tokens numbered before them (mistral_common/tokens/tokenizers/tekken.py).
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import tiktoken

from engine_adapters.prompt.cuts import AddedToken, SafeCuts
from engine_adapters.prompt.encoded import Encoded, encoded_of, refuse_surrogates

FILE_NAME = "tekken.json"

_UNLISTED = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of files that list none (v3)."""


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str  # base64


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


class TekkenTokenizer:
    """Thread-safe; encoding releases the interpreter."""

    def __init__(self, pattern: str, ranks: Mapping[bytes, int], specials: Sequence[str]) -> None:
        """`specials[i]` is id i; byte strings follow."""
        self._encoding = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})
        self._offset = len(specials)
        self._specials = {name: number for number, name in enumerate(specials)}
        self._special = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
        self._cuts = SafeCuts([AddedToken(name) for name in specials], pattern=pattern)

    @classmethod
    def from_folder(cls, folder: Path) -> TekkenTokenizer:
        """Raises ValueError naming the file when it cannot be read."""
        file = folder / FILE_NAME
        try:
            content = msgspec.json.decode(file.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        count = content.config.default_num_special_tokens
        kept = content.config.default_vocab_size - count
        ranks = {base64.b64decode(token.token_bytes): token.rank for token in content.vocab if token.rank < kept}
        if len(ranks) != kept:
            raise ValueError(f"{file} has {len(ranks)} byte strings, not the {kept} that its config tells")
        named = {token.rank: token.token_str for token in content.special_tokens or ()} or dict(enumerate(_UNLISTED))
        return cls(content.config.pattern, ranks, [named.get(i, f"<SPECIAL_{i}>") for i in range(count)])

    @property
    def vocab_size(self) -> int:
        return self._offset + self._encoding.n_vocab

    def resume(self, text: str, at: int = 0, carry: int = 0) -> Encoded:
        """See `PromptTokenizer`. Where the text is cut depends on the text alone, so `at` and `carry` do not matter here."""
        refuse_surrogates(text)
        ids = array("I")
        cuts: list[tuple[int, int, int]] = []
        last = 0
        for cut in self._cuts.find(text):
            self._encode_piece(text[last:cut], ids)
            cuts.append((cut, len(ids), 0))
            last = cut
        self._encode_piece(text[last:], ids)
        return encoded_of(ids, cuts)

    def holds(self, text: str, at: int) -> bool:
        return self._cuts.holds(text, at)

    def _encode_piece(self, text: str, ids: array[int]) -> None:
        start = 0
        for match in self._special.finditer(text):
            self._encode_plain(text[start : match.start()], ids)
            ids.append(self._specials[match.group()])
            start = match.end()
        self._encode_plain(text[start:], ids)

    def _encode_plain(self, text: str, ids: array[int]) -> None:
        offset = self._offset
        ids.extend([token + offset for token in self._encoding.encode(text, disallowed_special=())])
