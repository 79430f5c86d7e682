"""Tokenizers of three makes for the tests of prompts: the test model's, Kimi's and Mistral's."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import pytest
import zstandard

from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.kimi_tokenizer import KimiTokenizer, LongTexts
from engine_adapters.prompt.tekken_tokenizer import TekkenTokenizer
from engine_adapters.prompt.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
KIMI_DATA = ROOT / "tests" / "data" / "tokenizers" / "kimi"


@pytest.fixture(scope="session")
def kimi_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kimi")
    with (KIMI_DATA / "tiktoken.model.zst").open("rb") as packed, (folder / "tiktoken.model").open("wb") as file:
        zstandard.ZstdDecompressor().copy_stream(packed, file)
    (folder / "tokenizer_config.json").write_bytes((KIMI_DATA / "tokenizer_config.json").read_bytes())
    return folder


@pytest.fixture(scope="session")
def tekken_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tekken")
    with as_file(files("mistral_common") / "data" / "tekken_240911.json") as file:
        (folder / "tekken.json").symlink_to(file)
        assert (folder / "tekken.json").exists()
    return folder


@pytest.fixture(scope="session")
def hf() -> Tokenizer:
    return Tokenizer.from_folder(MODEL_DIR)


@pytest.fixture(scope="session")
def kimi(kimi_folder: Path) -> KimiTokenizer:
    return KimiTokenizer.from_folder(kimi_folder, LongTexts.WHOLE)


@pytest.fixture(scope="session")
def tekken(tekken_folder: Path) -> TekkenTokenizer:
    return TekkenTokenizer.from_folder(tekken_folder)


@pytest.fixture(scope="session")
def tokenizers_by_name(hf: Tokenizer, kimi: KimiTokenizer, tekken: TekkenTokenizer) -> dict[str, PromptTokenizer]:
    return {"hf": hf, "kimi": kimi, "tekken": tekken}
