"""What many threads remember together: shared beginnings counted once, the bound kept, the oldest forgotten."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine_adapters.prompt.cache import PromptCache
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.rope import Chunk
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.state import STATE_BYTES, PromptState
from engine_adapters.prompt.template import PromptTemplate
from engine_adapters.prompt.tokenizer import Tokenizer
from engine_adapters.prompt.verify import verify
from kvtier.hashing.sglang import Chain

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROOT = Chain(16)
Messages = list[dict[str, str]]


def body(messages: Messages, **members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def talk(*texts: str) -> Messages:
    return [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)]


@pytest.fixture
def model(hf: Tokenizer) -> PromptModel:
    return PromptModel(PromptTemplate(TEMPLATE), hf, SglangProfile(), seed=1)


def held_bytes(states: list[PromptState]) -> int:
    chunks: set[Chunk] = {chunk for state in states for chunk in state.chunks}
    return len(states) * STATE_BYTES + sum(chunk.cost_bytes for chunk in chunks)


@pytest.mark.parametrize("keep_ids", [True, False])
def test_a_hundred_forks_hold_one_copy(model: PromptModel, keep_ids: bool) -> None:
    cache = PromptCache(model, 1 << 30, keep_ids=keep_ids)
    parent = talk(*(f"text {number} " * 200 for number in range(41)))
    cache.extend("parent", body(parent), ROOT)
    alone = cache.used_bytes
    for number in range(100):
        question = [*parent[:30], {"role": "user", "content": f"question {number}"}]
        state = cache.extend(f"fork{number}", body(question), ROOT, origin="parent")
        assert number % 25 or verify(state, model, body(question)).right
    assert cache.counts.begun_alike == 100
    assert cache.used_bytes - alone < 100 * (STATE_BYTES + 4000)
    assert cache.used_bytes == held_bytes(list(cache._states.values()))
    assert verify(cache.get("parent") or state, model, body(parent)).right


def test_threads_with_the_same_system_prompt_share_it_unasked(model: PromptModel) -> None:
    cache = PromptCache(model, 1 << 30)
    system = {"role": "system", "content": "rules of the house. " * 3000}
    sizes = []
    for number in range(20):
        before = cache.used_bytes
        cache.extend(f"t{number}", body([system, {"role": "user", "content": f"hello {number}"}]), ROOT)
        sizes.append(cache.used_bytes - before)
    assert max(sizes[1:]) < sizes[0] / 4
    assert cache.counts.cold == 1


def test_the_oldest_is_forgotten_and_the_bound_kept(model: PromptModel) -> None:
    one = PromptCache(model, 1 << 30)
    one.extend("a", body(talk("x " * 5000)), ROOT)
    cache = PromptCache(model, one.used_bytes * 3)
    for number in range(10):
        cache.extend(f"t{number}", body(talk(f"{number} " * 5000)), ROOT)
        assert cache.used_bytes <= one.used_bytes * 3
        cache.get("t0")
    assert cache.counts.evicted > 5
    assert cache.get("t0") is not None
    assert cache.get("t9") is not None


def test_a_state_beyond_the_bound_of_one_thread_is_made_but_not_kept(model: PromptModel) -> None:
    cache = PromptCache(model, 1 << 30, max_thread_bytes=5000)
    state = cache.extend("t", body(talk("x " * 5000)), ROOT)
    assert state.tokens > 5000
    assert cache.get("t") is None
    assert (cache.counts.refused, cache.used_bytes) == (1, 0)


def test_a_refused_body_changes_nothing(model: PromptModel) -> None:
    cache = PromptCache(model, 1 << 30)
    state = cache.extend("t", body(talk("a")), ROOT)
    for wrong in (b"{", b'{"messages": []}', b'{"messages": [1]}', body([{"content": "no role"}])):
        with pytest.raises(ValueError):
            cache.extend("t", wrong, ROOT)
    assert cache.get("t") is state
    cache.forget("t")
    cache.forget("t")
    assert (len(cache), cache.used_bytes) == (0, 0)


def test_a_small_pool_of_threads_may_use_it_at_once(model: PromptModel) -> None:
    cache = PromptCache(model, 1 << 30)
    wrong: list[str] = []

    def work(name: str) -> None:
        messages = talk("shared " * 500)
        for number in range(15):
            messages = [
                *messages,
                {"role": "assistant", "content": f"{number}"},
                {"role": "user", "content": f"{name} {number}"},
            ]
            state = cache.extend(name, body(messages), ROOT)
            if not verify(state, model, body(messages)).right:
                wrong.append(name)

    pool = [threading.Thread(target=work, args=(f"t{number % 3}",)) for number in range(6)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert not wrong
    assert cache.used_bytes == held_bytes(list(cache._states.values()))


class Threads(RuleBasedStateMachine):
    """Any order of turns, forks, edits and losses: every state is right and every byte accounted for."""

    def __init__(self) -> None:
        super().__init__()
        tokenizer = TOKENIZERS[0]
        self.model = PromptModel(PromptTemplate(TEMPLATE), tokenizer, SglangProfile(), seed=1)
        self.cache = PromptCache(self.model, 120_000)
        self.talks: dict[str, Messages] = {}
        self.count = 0

    def check(self, name: str, origin: str | None = None) -> None:
        sent = body(self.talks[name])
        state = self.cache.extend(name, sent, ROOT, origin)
        assert verify(state, self.model, sent).right

    @rule(text=st.integers(0, 3), repeat=st.sampled_from([1, 200]))
    def begin(self, text: int, repeat: int) -> None:
        self.count += 1
        name = f"t{self.count % 7}"
        self.talks[name] = talk(f"begin {text} " * repeat)
        self.check(name)

    @rule(pick=st.integers(0, 6), text=st.integers(0, 3), repeat=st.sampled_from([1, 50, 300]))
    def go_on(self, pick: int, text: int, repeat: int) -> None:
        name = f"t{pick}"
        if name in self.talks:
            self.talks[name] = talk(*(message["content"] for message in self.talks[name]), "answer", f"ask {text} " * repeat)
            self.check(name)

    @rule(pick=st.integers(0, 6), to=st.integers(0, 6), share=st.integers(0, 10))
    def fork(self, pick: int, to: int, share: int) -> None:
        name, target = f"t{pick}", f"t{to}"
        if name in self.talks:
            texts = [message["content"] for message in self.talks[name]]
            kept = (len(texts) * share // 10) // 2 * 2
            self.talks[target] = talk(*texts[:kept], "another way")
            self.check(target, name)

    @rule(pick=st.integers(0, 6))
    def forget(self, pick: int) -> None:
        self.cache.forget(f"t{pick}")

    @invariant()
    def bytes_are_accounted_for(self) -> None:
        states = list(self.cache._states.values())
        assert self.cache.used_bytes == held_bytes(states)
        assert self.cache.used_bytes <= 120_000


TOKENIZERS: list[Tokenizer] = []


@pytest.fixture(autouse=True)
def tokenizer_of_the_machine(hf: Tokenizer) -> None:
    TOKENIZERS[:] = [hf]


TestThreads = Threads.TestCase
TestThreads.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
