"""What long threads weigh: two thousand of 100,000 tokens must fit, and what is counted must be what is used."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from typing import Any

import pytest

from engine_adapters.prompt.cache import PromptCache
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from kvtier.hashing.sglang import Chain

THREADS = 10
FLEET = 2000
LIMITS = {True: 1.5e9, False: 0.25e9}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def talk(seed: int) -> list[dict[str, Any]]:
    """400 messages, half of them short, about 100,000 tokens; no two threads alike."""
    rng = random.Random(seed)
    words = [f"word{rng.randrange(10_000)}" for _ in range(400)]
    found = []
    for number in range(400):
        count = 110 if number % 2 else 12
        found.append(
            {"role": "assistant" if number % 2 else "user", "content": f"{seed}\n" + " ".join(rng.choices(words, k=count))}
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("keep_ids", [True, False])
def test_two_thousand_threads_fit(hf: Tokenizer, keep_ids: bool) -> None:
    model = PromptModel(PromptTemplate(TEMPLATE), hf, SglangProfile(), seed=1)
    cache = PromptCache(model, 1 << 40, keep_ids=keep_ids)
    talks = [talk(seed) for seed in range(THREADS)]
    cache.extend("warm", json.dumps({"messages": talks[0][:9]}).encode(), Chain(64))
    gc.collect()
    tracemalloc.start()
    before, counted_before = tracemalloc.get_traced_memory()[0], cache.used_bytes
    tokens = 0
    for number, messages in enumerate(talks):
        for end in range(40, len(messages) + 1, 40):
            state = cache.extend(f"t{number}", json.dumps({"messages": messages[:end]}).encode(), Chain(64))
        tokens += state.tokens
    gc.collect()
    used, counted = tracemalloc.get_traced_memory()[0] - before, cache.used_bytes - counted_before
    tracemalloc.stop()
    per_100k = used / (tokens / 100_000)
    assert per_100k * FLEET < LIMITS[keep_ids]
    assert used < counted * 1.15
