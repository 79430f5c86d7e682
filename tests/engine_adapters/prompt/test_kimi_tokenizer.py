"""Kimi's tokenizer against reference ids, and its long texts against a literal reading of what its own code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapters.prompt import cuts, kimi_tokenizer
from engine_adapters.prompt.cuts import KIMI_PATTERN
from engine_adapters.prompt.kimi_tokenizer import KimiTokenizer, LongTexts, read_ranks

BYTES = {bytes([number]): number for number in range(256)} | {b"ab": 256, b"  ": 257, b"aa": 258, b"\n\n": 259, b" a": 260}
NAMED = {"[BOS]": len(BYTES), "<|im_end|>": len(BYTES) + 3, "<think>": len(BYTES) + 20}
SPECIALS = {f"<|reserved_token_{i}|>": i for i in range(len(BYTES), len(BYTES) + 256) if i not in NAMED.values()} | NAMED


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19180, 2695]),
        ("Hello, world!", [19180, 11, 2695, 0]),
        ("你好世界", [33845, 2243]),
        ("1234567890", [6694, 12972, 16242, 15]),
        ("中文English混合", [16717, 44372, 13935]),
        ("<|im_user|>user<|im_middle|>hi<|im_end|>", [163587, 2482, 163601, 9663, 163586]),
        ("<|reserved_token_163600|>", [163600]),
    ],
)
def test_reference_ids(kimi: KimiTokenizer, text: str, ids: list[int]) -> None:
    assert kimi.resume(text).ids.tolist() == ids
    assert kimi.vocab_size == 163_840


@pytest.mark.parametrize(
    ("text", "whole", "between"),
    [
        ("a" * 24_998 + "[BOS]" + "b" * 10, False, True),
        ("a" * 24_990 + "[BOS]" + "b" * 10, True, True),
        ("a" * 25_000 + "[BOS]" + "b" * 10, True, True),
        ("x " * 200_000 + "[BOS]", True, True),
        ("x " * 199_999 + "[BOS]", False, True),
    ],
)
def test_a_special_token_across_a_long_texts_end_is_text(
    kimi_folder: Path, kimi: KimiTokenizer, text: str, whole: bool, between: bool
) -> None:
    assert (163_584 in kimi.resume(text).ids) is whole
    assert (163_584 in KimiTokenizer.from_folder(kimi_folder, LongTexts.BETWEEN_SPECIALS).resume(text).ids) is between


@pytest.mark.slow
def test_a_megabyte_of_anything_is_encoded(kimi: KimiTokenizer) -> None:
    for text in (" " * 1_000_000, "A" * 1_000_000, "\n" * 1_000_000):
        assert len(kimi.resume(text).ids) > 1000


def test_a_broken_ranks_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("IQ== 0\nIg== 2\n")
    with pytest.raises(ValueError, match=r"tiktoken\.model line 2"):
        read_ranks(tmp_path / "tiktoken.model")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        KimiTokenizer.from_folder(tmp_path, LongTexts.WHOLE)


class Literal:
    """What `tokenization_kimi.py` does, with small limits, over a vocabulary of bytes."""

    _encoding = tiktoken.Encoding("bytes", pat_str=KIMI_PATTERN, mergeable_ranks=BYTES, special_tokens=SPECIALS)

    def __init__(self, chunk_chars: int, run_chars: int) -> None:
        self._chunk_chars, self._run_chars = chunk_chars, run_chars

    def whole(self, text: str) -> list[int]:
        ids: list[int] = []
        for start in range(0, len(text), self._chunk_chars):
            for part in self._parts(text[start : start + self._chunk_chars]):
                ids += self._encoding.encode(part, allowed_special="all")
        return ids

    def between(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, NAMED)) + ")", text):
            ids += [NAMED[part]] if part in NAMED else self.whole(part)
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        run, space, start = 0, text[0].isspace(), 0
        for index, char in enumerate(text):
            if char.isspace() != space:
                run, space = 1, not space
            else:
                run += 1
                if run > self._run_chars:
                    yield text[start:index]
                    start, run = index, 1
        yield text[start:]


WORDS = ["a", "ab", "aaaa", "A", "中", "1", ".", "[BOS]", "<|im_end|>", "<|im_", "end|>", "<think>"]
SPACES = [" ", "  ", "\n", "\na", "\n\n", "\x1c", "\nab"]
PLAIN = st.sampled_from([*(word for word in WORDS if word not in NAMED), *SPACES])
ANY = st.sampled_from([*WORDS, *SPACES]) | st.sampled_from(WORDS)
texts = st.one_of(st.lists(kind, min_size=least, max_size=60) for kind in (ANY, PLAIN) for least in (0, 20)).map("".join)
TOKENIZERS = {path: KimiTokenizer(BYTES, NAMED, path) for path in LongTexts}


@pytest.mark.slow
@settings(deadline=None)
@given(text=texts, path=st.sampled_from(LongTexts), limits=st.sampled_from([(23, 1000), (97, 23), (61, 13)]), data=st.data())
def test_long_texts_are_cut_as_kimi_cuts_them_and_resumed_anywhere(
    text: str, path: LongTexts, limits: tuple[int, int], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kimi_tokenizer, "_CHUNK_CHARS", limits[0])
        patch.setattr(kimi_tokenizer, "_RUN_CHARS", limits[1])
        patch.setattr(cuts, "_APART_CHARS", 1)
        patch.setattr(cuts, "_NEWLINES_APART_CHARS", 3)
        tokenizer, literal = TOKENIZERS[path], Literal(*limits)
        reference = literal.whole if path is LongTexts.WHOLE else literal.between
        encoded = tokenizer.resume(text)
        assert encoded.ids.tolist() == reference(text)
        other = data.draw(texts)
        for chars, tokens, carry in zip(encoded.cut_chars, encoded.cut_tokens, encoded.cut_carries, strict=True):
            for following in (text[chars:], other):
                again = text[:chars] + following
                if tokenizer.holds(again, chars):
                    rest = tokenizer.resume(following, chars, carry).ids
                    assert encoded.ids[:tokens].tolist() + rest.tolist() == reference(again)
