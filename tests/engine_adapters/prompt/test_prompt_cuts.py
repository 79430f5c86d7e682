"""A text cut where the tokenizer says it may be encodes as the whole does, for every pattern and kind of added token."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from engine_adapters.prompt import cuts
from engine_adapters.prompt.encoded import UNPROVEN, PromptTokenizer
from engine_adapters.prompt.tokenizer import Tokenizer

LETTERS = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
MERGES = [("a", "b"), ("ab", "a"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ("Ċ", "a"), ("Ġ", "a"), ("ĊĊ", "Ġ"), ("1", "1"), (".", "Ċ")]
ADDED = ["<|s|>", "<|s|>x", "<e>", "[T]\n", "<|", "<w>", "</think>"]


def bpe(pattern: str | None, added: list[AddedToken], normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """Bytes and a few merges, some across newlines, which only a wrong cut would keep apart."""
    vocabulary = dict(LETTERS)
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    if pattern is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_tokens(added)
    return Tokenizer(backend)


def plain(*names: str) -> list[AddedToken]:
    return [AddedToken(name, normalized=False) for name in names]


UNKNOWN = r"\s+|\S+"
MAKES = {
    **{
        f"pattern{number}": bpe(pattern, plain("<|s|>", "<e>", "</think>"))
        for number, pattern in enumerate(sorted(cuts._PATTERNS))
    },
    "gpt2": bpe(None, plain("<|s|>", "<e>")),
    "nfc": bpe(min(cuts._PATTERNS), plain("<|s|>", "<e>"), normalizers.NFC()),
    "covering": bpe(None, plain("<|s|>", "<|s|>x", "<|", "<e>")),
    "newline": bpe(None, plain("<|s|>", "[T]\na", "<e>")),
    "normalised": bpe(None, [*plain("<|s|>", ">x"), AddedToken("<e>", normalized=True), AddedToken("<w>", normalized=True)]),
    "lowercased": bpe(None, [*plain("<|s|>"), AddedToken("<e>", normalized=True)], normalizers.Lowercase()),
    "swallowing": bpe(
        None, [*plain("<|s|>"), AddedToken("<e>", rstrip=True, normalized=False), AddedToken("<w>", lstrip=True)]
    ),
    "words": bpe(None, [*plain("<|s|>", "end"), AddedToken("aba", single_word=True, normalized=False)]),
    "spaces": bpe(None, plain("<|s|>", "  ", "\n\n", "<e> ")),
    "unknown": bpe(UNKNOWN, plain("<|s|>", "<e>")),
}
PARTS = [
    "a", "b", "ab", "A", "x", " ", "  ", "\n", "\n\n", "\na", "a\na", " \na", "\r\n", ".", "./", "'s", "1", "11", "中", "é",
    "e\u0301", "\u0301", "😀", "\x1c", "\x85", "\xa0", "\u3000", "<|s|>", "<|s|>x", "<e>", "<e> ", "<w>", "<|", "[T]\na",
    "</think>", "aba", "end",
]  # fmt: skip
texts = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.lists(
    st.sampled_from(PARTS), min_size=15, max_size=50
).map("".join)


def check(tokenizer: PromptTokenizer, whole: list[int], text: str, other: str) -> int:
    encoded = tokenizer.resume(text)
    assert encoded.ids.tolist() == whole
    proven = 0
    for chars, tokens, carry in zip(encoded.cut_chars, encoded.cut_tokens, encoded.cut_carries, strict=True):
        if carry & UNPROVEN:
            continue
        proven += 1
        assert encoded.ids[:tokens] + tokenizer.resume(text[chars:], chars, carry).ids == encoded.ids
        again = text[:chars] + other
        if tokenizer.holds(again, chars):
            assert encoded.ids[:tokens] + tokenizer.resume(other, chars, carry).ids == tokenizer.resume(again).ids
    return proven


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKES)
@settings(deadline=None)
@given(text=texts, other=texts)
def test_parts_encode_as_the_whole(make: str, text: str, other: str) -> None:
    tokenizer = MAKES[make]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_APART_CHARS", 1)
        patch.setattr(cuts, "_NEWLINES_APART_CHARS", 2)
        check(tokenizer, tokenizer._backend.encode(text, add_special_tokens=False).ids, text, other)


@pytest.mark.parametrize("make", ["pattern0", "pattern4", "gpt2", "nfc", "words", "unknown"])
def test_the_usual_makes_are_cut_behind_special_tokens(make: str) -> None:
    assert list(MAKES[make].resume("word " * 9 + "<|s|>" + "word " * 9 + "<|s|>" + "a").cut_chars) == [50, 100]


@pytest.mark.parametrize(
    ("make", "expected"), [("pattern0", True), ("nfc", True), ("gpt2", True), ("newline", False), ("spaces", False)]
)
def test_long_texts_are_cut_behind_newlines_where_that_is_proven(make: str, expected: bool) -> None:
    encoded = MAKES[make].resume("a line.\nand\n\none more\n" * 500)
    assert len(encoded.cut_chars) > 3
    assert {not carry & UNPROVEN for carry in encoded.cut_carries} == {expected}


def test_an_unknown_pattern_gives_only_likely_cuts_behind_newlines() -> None:
    carries = MAKES["unknown"].resume("a line.\nand\n" * 1000 + "<|s|>" + "b").cut_carries
    assert len(carries) > 3
    assert list(carries) == [UNPROVEN] * (len(carries) - 1) + [0]


def test_a_tokenizer_that_marks_the_beginning_has_no_cuts() -> None:
    tokenizer = bpe(None, plain("<|s|>"))
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    assert list(Tokenizer(backend).resume("<|s|>" * 50 + "a\nb" * 5000).cut_chars) == []


@pytest.mark.parametrize("make", ["hf", "kimi", "tekken"])
def test_lone_surrogates_are_refused_as_engines_do(make: str, tokenizers_by_name: dict[str, PromptTokenizer]) -> None:
    with pytest.raises(ValueError):
        tokenizers_by_name[make].resume("a\ud800b").ids.tolist()
