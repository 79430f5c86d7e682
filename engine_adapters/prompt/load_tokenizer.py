"""Picks the tokenizer of a model folder by the files in it."""

from __future__ import annotations

from pathlib import Path

from engine_adapters.prompt import kimi_tokenizer, tekken_tokenizer, tokenizer
from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.fast_tokenizer import FastTokenizer
from engine_adapters.prompt.kimi_tokenizer import KimiTokenizer, LongTexts
from engine_adapters.prompt.tekken_tokenizer import TekkenTokenizer
from engine_adapters.prompt.tokenizer import Tokenizer

_FILES = (tokenizer.FILE_NAME, kimi_tokenizer.FILE_NAME, tekken_tokenizer.FILE_NAME)


def load_tokenizer(folder: Path, *, long_texts: LongTexts = LongTexts.WHOLE, fast: bool = False) -> PromptTokenizer:
    """`tokenizer.json`, else Kimi's `tiktoken.model`, else Mistral's `tekken.json`: the order in which engines prefer them.

    `long_texts`: how the engine cuts long texts for Kimi's. `fast`: with fastokens, where the folder has a `tokenizer.json`.
    Raises ValueError naming the folder and what it lacks.
    """
    if (folder / tokenizer.FILE_NAME).exists():
        reference = Tokenizer.from_folder(folder)
        return FastTokenizer.proven(folder, reference) if fast else reference
    if fast:
        raise ValueError(f"{folder} has no {tokenizer.FILE_NAME}, which fastokens needs; leave it off")
    if (folder / kimi_tokenizer.FILE_NAME).exists():
        return KimiTokenizer.from_folder(folder, long_texts)
    if (folder / tekken_tokenizer.FILE_NAME).exists():
        return TekkenTokenizer.from_folder(folder)
    there = "is no folder" if not folder.is_dir() else f"has none of {', '.join(_FILES)}"
    raise ValueError(f"{folder} {there}: give the model folder that the engines serve")
