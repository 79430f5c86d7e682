from __future__ import annotations

from pathlib import Path

import pytest

from engine_adapters.emulator.worker.options import DEFAULT_MODEL_FOLDER
from engine_adapters.prompt.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL_FOLDER)


@pytest.mark.parametrize("text", ["", "def f(x):\n    return x", "naïve → 🎉", "<|im_start|>user\nhi<|im_end|>\n"])
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_text_are_themselves(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>x<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == "x"


def test_a_prompt_gets_no_tokens_it_does_not_hold(tokenizer: Tokenizer) -> None:
    assert not tokenizer.adds_specials
    assert tokenizer.encode_prompt("abc") == tokenizer.encode("abc", add_special_tokens=False)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
