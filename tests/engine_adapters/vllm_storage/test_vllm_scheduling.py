"""Which blocks the scheduler's side orders to be loaded and saved, over an agent that is a set of digests."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.vllm_storage.orders import LoadBlocks, Orders, SaveBlocks
from engine_adapters.vllm_storage.scheduling import Scheduling
from kvtier.page.key import DIGEST_BYTES

BLOCK = 4


def digest(number: int) -> bytes:
    return sha256(number.to_bytes(4, "little")).digest()


@dataclass
class FakeRequest:
    num_tokens: int
    request_id: str = "r"
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grow(0)

    def grow(self, tokens: int) -> None:
        self.num_tokens += tokens
        self.block_hashes[:] = [digest(number) for number in range(self.num_tokens // BLOCK)]


class FakeAgent:
    def __init__(self, numbers: range = range(0)) -> None:
        self.digests = {digest(number) for number in numbers}

    def look(self, digests: bytes) -> int:
        split = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        return next((at for at, each in enumerate(split) if each not in self.digests), len(split))


def blocks_of(request: str) -> list[int]:
    return list(range(100, 200))


def digests(*numbers: int) -> bytes:
    return b"".join(map(digest, numbers))


def step(scheduling: Scheduling, before: int, new: int) -> Orders:
    return scheduling.orders({"r": (before, new)}, blocks_of, set())


def test_a_new_prompt_is_stored_as_it_is_computed() -> None:
    scheduling = Scheduling(FakeAgent().look, BLOCK)
    request = FakeRequest(18)
    assert scheduling.matched_tokens(request, 0) == 0
    scheduling.allocated(request, blocks_of("r"), 0)
    assert step(scheduling, 0, 10) == Orders([], [SaveBlocks(digests(0, 1), (100, 101), 0)])
    assert step(scheduling, 10, 8) == Orders([], [SaveBlocks(digests(2, 3), (102, 103), 2)])
    assert step(scheduling, 18, 1) == Orders()
    request.grow(2)
    assert step(scheduling, 19, 1) == Orders([], [SaveBlocks(digests(4), (104,), 4)])


def test_what_the_agent_has_behind_local_blocks_is_loaded_and_not_stored_again() -> None:
    scheduling = Scheduling(FakeAgent(range(3)).look, BLOCK)
    request = FakeRequest(18)
    assert scheduling.matched_tokens(request, 4) == 8
    scheduling.allocated(request, blocks_of("r"), 8)
    assert step(scheduling, 12, 0) == Orders([LoadBlocks("r", digests(1, 2), (101, 102))], [])
    scheduling.allocated(request, blocks_of("r"), 0)  # vLLM's second call, after the load
    assert step(scheduling, 12, 6) == Orders([], [SaveBlocks(digests(3), (103,), 3)])


def test_the_last_token_is_left_to_compute() -> None:
    scheduling = Scheduling(FakeAgent(range(10)).look, BLOCK)
    assert scheduling.matched_tokens(FakeRequest(16), 0) == 12
    assert scheduling.matched_tokens(FakeRequest(17), 0) == 16
    assert scheduling.matched_tokens(FakeRequest(3), 0) == 0


def test_what_vllm_has_and_the_agent_has_lost_is_stored_again() -> None:
    scheduling = Scheduling(FakeAgent(range(2)).look, BLOCK)
    request = FakeRequest(18)
    assert scheduling.matched_tokens(request, 16) == 0
    scheduling.allocated(request, blocks_of("r"), 0)
    assert step(scheduling, 16, 2) == Orders([], [SaveBlocks(digests(2, 3), (102, 103), 2)])


def test_a_run_behind_a_lost_page_is_still_loaded() -> None:
    agent = FakeAgent(range(4))
    agent.digests.discard(digest(0))
    scheduling = Scheduling(agent.look, BLOCK)
    assert scheduling.matched_tokens(FakeRequest(18), 4) == 12


def test_blocks_of_a_failed_load_are_computed_and_stored() -> None:
    scheduling = Scheduling(FakeAgent(range(4)).look, BLOCK)
    request = FakeRequest(18)
    scheduling.matched_tokens(request, 0)
    scheduling.allocated(request, blocks_of("r"), 16)
    assert len(step(scheduling, 16, 0).loads) == 1
    assert step(scheduling, 8, 10) == Orders([], [SaveBlocks(digests(2, 3), (102, 103), 2)])


def test_tokens_that_are_not_known_yet_are_stored_once_they_are() -> None:
    """vLLM schedules ahead of its samplers: a step may be counted before its tokens have hashes."""
    scheduling = Scheduling(FakeAgent().look, BLOCK)
    request = FakeRequest(7)
    scheduling.matched_tokens(request, 0)
    scheduling.allocated(request, blocks_of("r"), 0)
    assert step(scheduling, 0, 7).saves == [SaveBlocks(digests(0), (100,), 0)]
    assert step(scheduling, 7, 1).saves == []
    request.grow(1)
    assert step(scheduling, 8, 1).saves == [SaveBlocks(digests(1), (101,), 1)]


def test_a_preempted_request_begins_anew() -> None:
    agent = FakeAgent()
    scheduling = Scheduling(agent.look, BLOCK)
    request = FakeRequest(10)
    scheduling.matched_tokens(request, 0)
    scheduling.allocated(request, blocks_of("r"), 0)
    assert len(step(scheduling, 0, 10).saves) == 1
    agent.digests = {digest(0), digest(1)}
    assert scheduling.matched_tokens(request, 0) == 8
    scheduling.allocated(request, blocks_of("r"), 8)
    assert step(scheduling, 8, 0).loads == [LoadBlocks("r", digests(0, 1), (100, 101))]


def test_loads_that_fail_again_and_again_end_in_computing() -> None:
    """vLLM asks anew after each; the scheduler's agent may say yes while a worker's says nothing."""
    scheduling = Scheduling(FakeAgent(range(4)).look, BLOCK)
    request = FakeRequest(18)
    for _ in range(2):
        assert scheduling.matched_tokens(request, 0) == 16
        scheduling.allocated(request, blocks_of("r"), 16)
        assert len(step(scheduling, 16, 0).loads) == 1
    assert scheduling.matched_tokens(request, 0) == 0
    scheduling.allocated(request, blocks_of("r"), 0)
    assert step(scheduling, 0, 18) == Orders([], [SaveBlocks(digests(0, 1, 2, 3), (100, 101, 102, 103), 0)])


def test_finished_requests_are_forgotten() -> None:
    scheduling = Scheduling(FakeAgent().look, BLOCK)
    request = FakeRequest(10)
    scheduling.matched_tokens(request, 0)
    scheduling.allocated(request, blocks_of("r"), 0)
    assert scheduling.orders({}, blocks_of, {"r"}) == Orders()
    assert step(scheduling, 0, 10) == Orders()


def test_hashes_that_are_no_sha256_are_left_alone() -> None:
    scheduling = Scheduling(FakeAgent(range(10)).look, BLOCK)
    request = FakeRequest(18)
    request.block_hashes = [each[:16] for each in request.block_hashes]
    assert scheduling.matched_tokens(request, 0) == 0


@given(st.integers(1, 60), st.integers(0, 15), st.floats(0, 1), st.lists(st.integers(0, 20), max_size=12))
def test_every_full_block_is_loaded_or_stored_exactly_once(prompt: int, stored: int, share: float, steps: list[int]) -> None:
    scheduling = Scheduling(FakeAgent(range(stored)).look, BLOCK)
    request = FakeRequest(prompt)
    local = int(share * ((prompt - 1) // BLOCK)) * BLOCK
    external = scheduling.matched_tokens(request, local)
    scheduling.allocated(request, blocks_of("r"), external)
    done = local + external
    seen: list[int] = []
    for wanted in [*steps, prompt]:
        new = min(wanted, prompt - done)
        orders = step(scheduling, done, new)
        seen += [block for order in (*orders.loads, *orders.saves) for block in order.block_ids]
        for order in (*orders.loads, *orders.saves):
            assert order.digests == digests(*(block - 100 for block in order.block_ids))
        done += new
    assert sorted(seen) == list(range(100 + min(local // BLOCK, stored), 100 + prompt // BLOCK))
