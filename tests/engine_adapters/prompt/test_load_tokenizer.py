"""The tokenizer of a folder by its files; Mistral's against mistral-common; fastokens against tokenizers on all recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from engine_adapters.prompt.fast_tokenizer import FastTokenizer, hard_texts
from engine_adapters.prompt.kimi_tokenizer import KimiTokenizer
from engine_adapters.prompt.load_tokenizer import load_tokenizer
from engine_adapters.prompt.tekken_tokenizer import TekkenTokenizer
from engine_adapters.prompt.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
RECORDINGS = ROOT / "tests" / "data" / "clis"


@pytest.mark.slow
def test_the_files_decide(kimi_folder: Path, tekken_folder: Path) -> None:
    assert isinstance(load_tokenizer(MODEL_DIR), Tokenizer)
    assert isinstance(load_tokenizer(kimi_folder), KimiTokenizer)
    assert isinstance(load_tokenizer(tekken_folder), TekkenTokenizer)


def test_what_is_missing_is_named(tmp_path: Path, kimi_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has none of tokenizer\.json, tiktoken\.model, tekken\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        load_tokenizer(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"fastokens needs"):
        load_tokenizer(kimi_folder, fast=True)
    for name in ("tokenizer.json", "tekken.json"):
        (tmp_path / name).write_text("{")
        with pytest.raises(ValueError, match=name):
            load_tokenizer(tmp_path)
        (tmp_path / name).unlink()


@pytest.fixture(scope="module")
def tekkenizer(tekken_folder: Path) -> Tekkenizer:
    return Tekkenizer.from_file(tekken_folder / "tekken.json")


words = st.sampled_from(["word", "Über", " ", "  ", "\n", "\n\n", "1", "23", ".", "/", "[x]", "中文", "😀", "\u0301", "[/INS"])


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[])
@given(
    parts=st.lists(st.lists(words, max_size=30).map("".join), max_size=5),
    specials=st.lists(st.sampled_from([3, 4, 17, 36]), min_size=5),
)
def test_tekken_ids_are_mistral_commons(
    parts: list[str], specials: list[int], tekken: TekkenTokenizer, tekkenizer: Tekkenizer
) -> None:
    text, ids = "", []
    for part, special in zip(parts, specials, strict=False):
        text += part + tekkenizer.id_to_piece(special)
        ids += [*tekkenizer.encode(part, bos=False, eos=False), special]
    assert tekken.resume(text).ids.tolist() == ids
    assert tekken.vocab_size == tekkenizer.n_words


def test_what_the_pattern_cannot_split_is_a_value_error(tekken: TekkenTokenizer) -> None:
    with pytest.raises(ValueError, match=r"(?i)regex|stack"):
        tekken.resume(" " * 3_000_000)


@pytest.mark.slow
def test_fastokens_gives_the_same_ids_on_every_recording(hf: Tokenizer) -> None:
    fast = FastTokenizer.proven(MODEL_DIR, hf)
    bodies = [
        line for file in sorted(RECORDINGS.glob("*.gz")) for line in gzip.decompress(file.read_bytes()).decode().splitlines()
    ]
    texts = [json.dumps(json.loads(body), ensure_ascii=False) for body in bodies] + [
        "<|im_start|>" + text for text in hard_texts(["<think>"])
    ]
    assert len(bodies) > 200
    for text in texts:
        slow = hf.resume(text)
        assert fast.resume(text) == slow


def test_fastokens_is_refused_where_it_differs(hf: Tokenizer) -> None:
    class Wrong(Tokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [*super().encode(text, add_special_tokens=add_special_tokens), 0]

    with pytest.raises(ValueError, match="disagree"):
        FastTokenizer.proven(MODEL_DIR, Wrong.from_folder(MODEL_DIR))
