"""A node's events reach the index through answers that are lost, doubled, late, or of another life, against what it held."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlocksStored
from kvtier.index.memory import BlockIndex
from kvtier.index.node_feed import MAX_FRUITLESS, NodeFeed, NodeStep, NumberedBatch
from kvtier.index.project import project_node
from kvtier.index.source_key import NodeKey
from kvtier.page.space import PageSpace
from kvtier.store import journal as journal_module
from kvtier.store.journal import Journal, event_id

NODE, OTHER, READER = NodeKey("a"), NodeKey("b"), WorkerKey("p0")
SPACE = PageSpace(model="m", kv_dtype="bfloat16", layout="page_first", page_tokens=16)
DIGESTS = tuple(sha256(bytes([number])).digest() for number in range(6))
HELD_BY_OTHER = tuple(event_id(digest) for digest in DIGESTS)


def batch(seq: int) -> NumberedBatch:
    return NumberedBatch(seq, (BlocksStored((seq,), None, Tier.L3, 16),))


def test_batches_are_taken_once_and_in_order() -> None:
    feed = NodeFeed()
    assert feed.accept(1, [batch(0), batch(1)], snapshot=False) == NodeStep(True, True, (batch(0), batch(1)))
    assert feed.accept(1, [batch(1), batch(2)], snapshot=False) == NodeStep(True, False, (batch(2),))
    assert (feed.next_seq, feed.duplicates) == (3, 1)


def test_a_gap_is_asked_for_again_and_a_snapshot_fills_it() -> None:
    feed = NodeFeed()
    feed.accept(1, [batch(0)], snapshot=False)
    assert feed.accept(1, [batch(2)], snapshot=False) == NodeStep(False)
    assert feed.next_seq == 1
    assert feed.accept(1, [batch(5), batch(6)], snapshot=True) == NodeStep(True, True, (batch(5), batch(6)))
    assert (feed.next_seq, feed.gaps, feed.snapshots) == (7, 1, 1)


def test_a_gap_that_stays_empties_the_node() -> None:
    feed = NodeFeed()
    feed.accept(1, [batch(0)], snapshot=False)
    steps = [feed.accept(1, [batch(2)], snapshot=False) for _ in range(MAX_FRUITLESS)]
    assert [step.clear for step in steps] == [False] * (MAX_FRUITLESS - 1) + [True]
    assert feed.next_seq == 0
    assert feed.accept(1, [batch(0), batch(1), batch(2)], snapshot=False).trusted


def test_another_life_is_asked_from_its_beginning() -> None:
    feed = NodeFeed()
    feed.accept(1, [batch(0), batch(1)], snapshot=False)
    assert feed.accept(2, [batch(2)], snapshot=False) == NodeStep(False, clear=True)
    assert feed.next_seq == 0
    assert feed.accept(2, [batch(0)], snapshot=False) == NodeStep(True, False, (batch(0),))
    assert feed.accept(1, [batch(2)], snapshot=False) == NodeStep(True)  # late
    assert (feed.restarts, feed.next_seq) == (1, 1)


def test_a_straggler_does_not_end_the_living_epoch_for_good() -> None:
    feed = NodeFeed()
    feed.accept(2, [batch(0)], snapshot=False)
    feed.accept(1, [batch(0)], snapshot=False)  # never heard of before
    assert feed.accept(2, [batch(0)], snapshot=False) == NodeStep(True)
    assert feed.accept(2, [batch(0)], snapshot=False) == NodeStep(True)
    assert feed.accept(2, [batch(0)], snapshot=False) == NodeStep(True, True, (batch(0),))


def test_a_node_that_was_away_must_answer_first() -> None:
    feed = NodeFeed()
    feed.accept(1, [batch(0)], snapshot=False)
    assert feed.lost() == NodeStep(False)
    assert feed.accept(1, [], snapshot=False) == NodeStep(True)


class Answer:
    def __init__(self, life: Life, seq: int) -> None:
        self.life = life
        replay = life.journal.since(seq)
        self.batches = [NumberedBatch(each.seq, each.events) for each in replay.batches]
        self.snapshot = replay.snapshot
        life.note()


class Life:
    """One life of the node: its journal, and what it held after every batch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.journal = Journal(SPACE)
        self.held: set[tuple[bytes, Tier]] = set()
        self.after: dict[int, set[tuple[bytes, Tier]]] = {-1: set()}

    def note(self) -> None:
        """The journal closes its open batch when it is asked."""
        self.after.setdefault(self.journal.next_seq - 1, set(self.held))


class NodeMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.index = BlockIndex(max_entries=1024, max_sources=4)
        self.index.attach(READER, "a")
        self.index.apply(OTHER, BlocksStored(HELD_BY_OTHER, None, Tier.L4, 16), 0.0)
        self.feed = NodeFeed()
        self.life = Life(1)
        self.applied = (self.life, -1)
        self.away = False
        self.answers: list[Answer] = []

    def _obey(self, step: NodeStep) -> None:
        for _ in project_node(self.index, NODE, step, 1.0):
            pass

    @rule(changes=st.lists(st.tuples(st.sampled_from(DIGESTS), st.sampled_from((Tier.L3, Tier.L4))), min_size=1, max_size=5))
    def store_or_remove(self, changes: list[tuple[bytes, Tier]]) -> None:
        for digest, tier in changes:
            if (digest, tier) in self.life.held:
                self.life.held.remove((digest, tier))
                self.life.journal.removed([digest], 0, tier)
            else:
                self.life.held.add((digest, tier))
                self.life.journal.stored([digest], 0, tier)
            Answer(self.life, self.life.journal.next_seq)  # somebody else asks, so that the next change begins another batch

    @rule()
    def ask(self) -> None:
        if not self.away:
            self.answers.append(Answer(self.life, self.feed.next_seq))

    @precondition(lambda self: self.answers)
    @rule(late=st.booleans(), again=st.booleans())
    def answer(self, late: bool, again: bool) -> None:
        found = self.answers[-1] if late else self.answers[0]
        if not again:
            self.answers.remove(found)
        before = self.feed.next_seq
        step = self.feed.accept(found.life.epoch, found.batches, snapshot=found.snapshot)
        self._obey(step)
        if step.clear:
            self.applied = (found.life, -1)
        if step.batches:
            self.applied = (found.life, step.batches[-1].seq)
        assert self.feed.next_seq >= before or step.clear

    @precondition(lambda self: any(len(answer.batches) > 1 for answer in self.answers))
    @rule(which=st.integers(0, 5))
    def lose_a_batch(self, which: int) -> None:
        """As where batches travel one by one; a snapshot is whole or not there."""
        answer = next(answer for answer in self.answers if len(answer.batches) > 1)
        first = 1 if answer.snapshot else 0
        answer.batches.pop(first + which % (len(answer.batches) - first))

    @precondition(lambda self: self.answers)
    @rule()
    def lose(self) -> None:
        self.answers.pop(0)

    @rule()
    def go_away(self) -> None:
        self.away = True
        self._obey(self.feed.lost())

    @rule()
    def come_back(self) -> None:
        self.away = False

    @rule()
    def restart(self) -> None:
        self.life = Life(self.life.epoch + 1)

    @rule()
    def sweep(self) -> None:
        self.index.sweep(64)

    @invariant()
    def the_index_says_what_was_held(self) -> None:
        if not hasattr(self, "index"):
            return
        found = {}
        for digest in DIGESTS:
            (run,) = self.index.match((event_id(digest),), 1.0)[READER].runs
            if run.source == "a":
                found[digest] = run.tier
        if not self.feed.live:
            assert not found
            return
        life, seq = self.applied
        held = life.after[seq]
        assert found == {digest: min(tier for each, tier in held if each == digest) for digest, _ in held}

    def teardown(self) -> None:
        """Left in peace, the feed is live and current."""
        if not hasattr(self, "index"):
            return
        self.answers.clear()
        self.away = False
        for _ in range(2 * MAX_FRUITLESS + 2):
            self.ask()
            self.answer(late=False, again=False)
        assert self.feed.live
        assert self.applied == (self.life, self.life.journal.next_seq - 1)
        self.the_index_says_what_was_held()


@pytest.mark.slow
@pytest.mark.parametrize("kept_hashes", [3, 1000])
def test_a_nodes_feed_against_what_it_held(kept_hashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_KEPT_HASHES", kept_hashes)
    run_state_machine_as_test(NodeMachine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
