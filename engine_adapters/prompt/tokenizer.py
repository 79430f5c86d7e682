"""A model's tokenizer, as HF transformers' fast tokenizers behave, read from `tokenizer.json`.

Text to token ids and back; nothing of templates or engines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers


class Tokenizer:
    """Thread-safe; `encode` releases the interpreter while it works."""

    def __init__(self, backend: tokenizers.Tokenizer, eos_token: str | None = None) -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_token_id: int | None = backend.token_to_id(eos_token) if eos_token else None
        self.adds_specials = bool(backend.encode("").ids)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Raises ValueError naming the folder when `tokenizer.json` is missing or unreadable."""
        file = folder / "tokenizer.json"
        if not file.exists():
            raise ValueError(f"{folder} has no tokenizer.json; give a model folder in Hugging Face layout")
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
        eos = config.get("eos_token")
        return cls(tokenizers.Tokenizer.from_file(str(file)), eos.get("content") if isinstance(eos, dict) else eos)

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in it become their ids, as transformers does by default."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered chat prompt, which already holds every special token it needs."""
        return self.encode(text, add_special_tokens=not self.adds_specials)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text
