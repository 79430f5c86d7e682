"""Prompts that are put together from known pieces have the tokenizer's own ids, and what is kept is bounded."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.emulator.wire.known_pieces import KnownPieces
from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER
from engine_adapters.prompt.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(DEFAULT_MODEL_FOLDER)
PARTS = (
    *TOKENIZER.special_tokens,
    "hello",
    " ",
    "\n",
    "\n\nTool",
    "naïve 漢",
    "<|",
    "|>",
    "x" * 40,
    "a line of words\n" * 20,
)
KNOWN = KnownPieces(TOKENIZER, max_chars=4_000)


@settings(deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40))
def test_ids_are_the_tokenizers_own(parts: list[str]) -> None:
    text = "".join(parts)
    assert list(KNOWN.encode_prompt(text)) == TOKENIZER.encode_prompt(text)
    assert KNOWN._chars == sum(map(len, KNOWN._ids)) <= 4_000


def test_the_least_recently_used_pieces_are_forgotten() -> None:
    known, rng = KnownPieces(TOKENIZER, max_chars=2_000), random.Random(1)
    end = TOKENIZER.special_tokens[-1]
    texts = ["".join(rng.choices("abcdefgh ", k=300)) + end for _ in range(20)]
    for text in texts:
        known.encode_prompt(texts[0] + text)
    kept = set(known._ids)
    assert texts[0] in kept
    assert texts[-1] in kept
    assert texts[1] not in kept
