"""A prefix on real vLLM: computed on one server, restored on another, and computed again whenever it cannot be had."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from vllm_pair import BLOCK_TOKENS, VllmPair, vllm_pair

from engine_adapters.launch.environments import ROOT, engine_bin
from engine_adapters.vllm_storage.plugin import write_plugin

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
VOCABULARY = 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    async with vllm_pair(MODEL_DIR, tmp_path_factory.mktemp("vllm-storage")) as running:
        yield running


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Replies of 24 tokens fill no further block behind them, so that what will be stored is known."""
    assert tokens % BLOCK_TOKENS + 24 < BLOCK_TOKENS
    rng = Random(seed)
    return [[rng.randrange(300, VOCABULARY) for _ in range(tokens)] for _ in range(count)]


def restorable(tokens: int) -> int:
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


async def test_prompts_travel_between_servers(pair: VllmPair) -> None:
    """Several at once, and longer than what one step computes (2048 tokens)."""
    for tokens, count in ((709, 8), (1280, 1), (3013, 2)):
        wanted = prompts(count, tokens, seed=tokens)
        before = await pair.numbers()
        first = await asyncio.gather(*(pair.ask(0, prompt) for prompt in wanted))
        await pair.stored(count * (tokens // BLOCK_TOKENS), before)
        second = await asyncio.gather(*(pair.ask(1, prompt) for prompt in wanted))
        assert [told.cached_tokens for told in first] == [0] * count
        assert [told.cached_tokens for told in second] == [restorable(tokens)] * count
        assert [told.text for told in second] == [told.text for told in first]


async def test_a_prompt_goes_on_where_the_other_server_left_it(pair: VllmPair) -> None:
    """The second turn's prefix is the first turn with its reply: blocks of both servers, in one prompt."""
    (prompt, more) = prompts(2, 640, seed=7)
    before = await pair.numbers()
    await pair.ask(0, prompt)
    await pair.stored(20, before)
    told = await pair.ask(1, prompt + more)
    assert told.cached_tokens == 640
    await pair.stored(40, before)
    again = await pair.ask(0, prompt + more)
    assert (again.cached_tokens, again.text) == (restorable(1280), told.text)


async def test_flipped_bits_are_computed_anew(pair: VllmPair) -> None:
    (prompt,) = prompts(1, 901, seed=8)
    before = await pair.numbers()
    first = await pair.ask(0, prompt)
    await pair.stored(28, before)
    await asyncio.to_thread(pair.agent.flip_bits, Random(9))
    second = await pair.ask(1, prompt)
    assert (second.text, second.cached_tokens) == (first.text, 0)
    assert (await pair.numbers())["corrupt_dram"] > before["corrupt_dram"]


async def test_servers_go_on_without_their_agent_and_find_it_again(pair: VllmPair) -> None:
    stored, fresh, later = prompts(3, 613, seed=10)
    before = await pair.numbers()
    first = await pair.ask(0, stored)
    await pair.stored(19, before)
    await asyncio.to_thread(pair.agent.kill)
    try:
        assert (await pair.ask(1, stored)).text == first.text
        assert (await pair.ask(0, fresh)).cached_tokens == 0
    finally:
        await asyncio.to_thread(pair.agent.start)
    await asyncio.sleep(1.5)  # an agent that failed is left alone for a second
    told = await pair.ask(0, later)
    await pair.stored(19, dict.fromkeys(before, 0.0))
    again = await pair.ask(1, later)
    assert (again.text, again.cached_tokens) == (told.text, restorable(613))


async def test_a_frozen_agent_holds_up_nobody(pair: VllmPair) -> None:
    stored, fresh = prompts(2, 613, seed=11)
    before = await pair.numbers()
    first = await pair.ask(0, stored)
    await pair.stored(19, before)
    pair.agent.freeze()
    try:
        assert (await pair.ask(1, stored)).text == first.text
        assert (await pair.ask(0, fresh)).cached_tokens == 0
    finally:
        pair.agent.thaw()


async def test_blocks_and_threads_in_the_engines_own_environment(tmp_path: Path) -> None:
    """torch is not in ours: what `vllm_blocks.py` asserts is asserted there."""
    plugin = write_plugin(tmp_path / "plugin.zip")
    script = Path(__file__).with_name("vllm_blocks.py")
    command = ["env", "-u", "PYTHONPATH", f"PYTHONPATH={plugin}", str(engine_bin("vllm") / "python"), "-P", str(script)]
    command += [str(tmp_path)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
