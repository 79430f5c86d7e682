"""Event loss, reordering, duplication and restarts against a model of the engine."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import AllCleared, BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.feed import Feed, FeedState, Replay, Snapshot, Step, Verdict
from kvtier.index.memory import BlockIndex
from kvtier.index.project import project

SOURCE = WorkerKey("p0")
BYSTANDER = WorkerKey("p1")
HASHES = tuple(range(-3, 5))
TIERS = (Tier.L1, Tier.L2)


@dataclass(frozen=True, eq=False)
class Batch:
    life: Life
    seq: int
    stamp_s: float
    events: tuple[BlockEvent, ...]


@dataclass(eq=False)
class Life:
    """One run of the engine, from start to restart."""

    epoch: str | None
    buffer_steps: int
    batches: list[Batch] = field(default_factory=list)

    def held_after(self, seq: int) -> Counter[tuple[int, Tier]]:
        held: Counter[tuple[int, Tier]] = Counter()
        for batch in self.batches[: seq + 1]:
            for event in batch.events:
                _play(held, event)
        return +held

    def snapshot(self) -> tuple[BlocksStored, ...]:
        """What SGLang's mirror has of L1: a block is in it until any tier removes it."""
        mirror: set[int] = set()
        for event in [event for batch in self.batches for event in batch.events]:
            if isinstance(event, AllCleared):
                mirror.clear()
            elif isinstance(event, BlocksRemoved):
                mirror.difference_update(event.hashes)
            elif event.tier is Tier.L1:
                mirror.update(event.hashes)
        return tuple(BlocksStored((block,), None, Tier.L1, 0) for block in sorted(mirror))

    def replay(self, from_seq: int) -> list[Batch]:
        return [batch for batch in self.batches[-self.buffer_steps :] if batch.seq >= from_seq]


def _play(held: Counter[tuple[int, Tier]], event: BlockEvent) -> None:
    if isinstance(event, AllCleared):
        held.clear()
    elif isinstance(event, BlocksStored):
        held.update((block, event.tier) for block in event.hashes)
    else:
        tiers = TIERS if event.tier is None else (event.tier,)
        for key in [(block, tier) for block in event.hashes for tier in tiers]:
            held[key] = max(0, held[key] - 1)


hash_tuples = st.lists(st.sampled_from(HASHES), min_size=1, max_size=4, unique=True).map(tuple)
events = st.one_of(
    st.builds(BlocksStored, hash_tuples, st.none(), st.sampled_from(TIERS), st.just(16)),
    st.builds(BlocksRemoved, hash_tuples, st.sampled_from((*TIERS, None))),
    st.builds(AllCleared),
)
batches = st.lists(events, min_size=1, max_size=3).map(tuple)


class FeedMachine(RuleBasedStateMachine):
    with_epochs = False
    can_snapshot = False

    @initialize(can_replay=st.booleans(), buffer_steps=st.integers(1, 30))
    def start(self, can_replay: bool, buffer_steps: int) -> None:
        self.index = BlockIndex(max_entries=1024, max_sources=4)
        self.index.apply(BYSTANDER, BlocksStored(HASHES, None, Tier.L1, 16), 0.0)
        self.feed = Feed(can_replay=can_replay, can_snapshot=self.can_snapshot)
        self.snapshot: Snapshot | None = None
        self.cut: Batch | None = None  # the snapshot on its way, as a batch of what it holds
        self.subset = False  # what is known came from a snapshot, which tells no host tier
        self.buffer_steps = buffer_steps
        self.clock_s = 1000.0
        self.lives = 0
        self.channel: deque[Batch] = deque()
        self.delivered: deque[Batch] = deque(maxlen=4)
        self.replay: Replay | None = None
        self.replaying: deque[Batch] | None = None
        self.replay_broken = False
        self.up = False
        self.applied: Batch | None = None
        self._new_life()

    def _new_life(self) -> None:
        self.lives += 1
        self.life = Life(f"epoch-{self.lives}" if self.with_epochs else None, self.buffer_steps)

    def _obey(self, step: Step, batch: Batch | None = None) -> None:
        if step.clear:
            self.applied = None
            self.subset = batch is not None and batch is self.cut
        if step.verdict is Verdict.APPLY:
            self.applied = batch
        replay = project(self.index, SOURCE, step, batch.events if batch else (), self.clock_s * 1000)
        if replay is not None:
            self.replay, self.replaying, self.replay_broken = replay, None, False
            self.snapshot = None
        if step.snapshot is not None:
            self.snapshot, self.cut, self.replay = step.snapshot, None, None

    @rule(events=batches)
    def publish(self, events: tuple[BlockEvent, ...]) -> None:
        self.clock_s += 1
        batch = Batch(self.life, len(self.life.batches), self.clock_s, events)
        self.life.batches.append(batch)
        if self.up:
            self.channel.append(batch)

    @precondition(lambda self: self.channel)
    @rule()
    def deliver(self) -> None:
        self._deliver(self.channel.popleft())

    def _deliver(self, batch: Batch) -> None:
        self.delivered.append(batch)
        self._obey(self.feed.accept(batch.life.epoch, batch.seq, batch.stamp_s), batch)

    @precondition(lambda self: self.channel)
    @rule()
    def lose(self) -> None:
        self.channel.popleft()

    @precondition(lambda self: len(self.channel) > 1)
    @rule()
    def reorder(self) -> None:
        self.channel.rotate(-1)

    @precondition(lambda self: self.delivered)
    @rule()
    def duplicate(self) -> None:
        if self.with_epochs or self.delivered[0].life is self.life:
            self._deliver(self.delivered[0])

    @rule()
    def connect(self) -> None:
        self.up = True
        self._obey(self.feed.connected(self.life.epoch))

    @rule()
    def disconnect(self) -> None:
        self.up = False
        self.channel.clear()
        self._obey(self.feed.disconnected())

    @rule()
    def restart_engine(self) -> None:
        """With epochs nobody need notice, and old batches may arrive late; without, the lost connection is seen."""
        self._new_life()
        self.replay_broken = self.replay is not None
        if not self.with_epochs:
            self.disconnect()

    @precondition(lambda self: self.replay is not None)
    @rule()
    def serve_replay(self) -> None:
        assert self.replay is not None
        if self.replaying is None:
            self.replaying = deque(self.life.replay(self.replay.from_seq))
            self.replay_broken = False
        ticket = self.replay.ticket
        if self.replay_broken:
            self.replay = None
            self._obey(self.feed.replay_failed(ticket))
        elif self.replaying:
            batch = self.replaying.popleft()
            self._obey(self.feed.replayed(ticket, batch.seq, batch.stamp_s), batch)
        else:
            self.replay = None
            self._obey(self.feed.replay_ended(ticket))

    @precondition(lambda self: self.replay is not None)
    @rule()
    def fail_replay(self) -> None:
        assert self.replay is not None
        ticket, self.replay = self.replay.ticket, None
        self._obey(self.feed.replay_failed(ticket))

    @precondition(lambda self: self.snapshot is not None and self.cut is None)
    @rule()
    def cut_snapshot(self) -> None:
        self.publish(())
        barrier = self.life.batches[-1]
        self.cut = Batch(barrier.life, barrier.seq, barrier.stamp_s, self.life.snapshot())

    @precondition(lambda self: self.snapshot is not None and self.cut is not None)
    @rule()
    def deliver_snapshot(self) -> None:
        assert self.snapshot is not None
        assert self.cut is not None
        ticket, self.snapshot = self.snapshot.ticket, None
        self._obey(self.feed.snapshotted(ticket, self.cut.life.epoch or "", self.cut.seq), self.cut)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def fail_snapshot(self) -> None:
        assert self.snapshot is not None
        ticket, self.snapshot = self.snapshot.ticket, None
        self._obey(self.feed.snapshot_failed(ticket))

    @rule(burst=st.lists(batches, min_size=1, max_size=4))
    def settle(self, burst: list[tuple[BlockEvent, ...]]) -> None:
        """A calm spell: batches come and are delivered, replays are served to their end."""
        for published in burst:
            self.publish(published)
        while self.channel or self.replay is not None or self.snapshot is not None:
            if self.channel:
                self.deliver()
            while self.replay is not None:
                self.serve_replay()
            if self.snapshot is not None:
                if self.cut is None:
                    self.cut_snapshot()
                self.deliver_snapshot()

    @rule()
    def sweep(self) -> None:
        self.index.sweep(3)

    @invariant()
    def index_tells_the_truth(self) -> None:
        if not hasattr(self, "index"):
            return
        matched = {block: self.index.match((block,), 0.0) for block in HASHES}
        assert all(BYSTANDER in found for found in matched.values())
        ours = {block: found[SOURCE].runs[0].tier for block, found in matched.items() if SOURCE in found}
        if self.feed.state is not FeedState.LIVE:
            assert not ours
            return
        held = self.applied.life.held_after(self.applied.seq) if self.applied else Counter()
        nearest = {block: min(tier for h, tier in held if h == block) for block in {block for block, _ in held}}
        if self.feed.partial or self.subset:
            assert all((block, tier) in held for block, tier in ours.items())
        else:
            assert ours == nearest

    def teardown(self) -> None:
        """Left in peace, every feed becomes live and current again."""
        if not hasattr(self, "index"):
            return
        if not self.up:
            self.connect()
        for _ in range(6):
            self.settle([(BlocksStored((HASHES[0],), None, Tier.L1, 16),)])
        assert self.feed.state is FeedState.LIVE
        assert self.applied is self.life.batches[-1]
        self.index_tells_the_truth()


class FeedMachineWithEpochs(FeedMachine):
    with_epochs = True


class FeedMachineWithSnapshots(FeedMachineWithEpochs):
    can_snapshot = True


MACHINES = [FeedMachine, FeedMachineWithEpochs, FeedMachineWithSnapshots]


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_feed_against_model(machine: type[FeedMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None))


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_feed_against_model_at_length(machine: type[FeedMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=40, deadline=None))
