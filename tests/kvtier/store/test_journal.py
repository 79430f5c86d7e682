"""What a node announces: whole pages only, gaplessly numbered, replayable, and believable to the index's own feed."""

from __future__ import annotations

import pytest
from store_model import digest

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlockEvent, BlocksRemoved, BlocksStored
from kvtier.index.feed import Feed
from kvtier.index.memory import BlockIndex
from kvtier.index.project import project
from kvtier.page.key import page_key
from kvtier.page.space import PageSpace, Shard
from kvtier.store import journal as journal_module
from kvtier.store.journal import Journal, Journals, event_id

NODE = WorkerKey("node-a")
WHOLE = PageSpace("m", "bf16", "page_first", 16)


def ids(*numbers: int) -> tuple[int, ...]:
    return tuple(event_id(digest(number)) for number in numbers)


def events_of(journal: Journal, seq: int = 0) -> list[BlockEvent]:
    return [event for batch in journal.since(seq).batches for event in batch.events]


def test_neighbours_share_an_event() -> None:
    journal = Journal(WHOLE)
    for number in (1, 2, 3):
        journal.stored([digest(number)], 0, Tier.L3)
    journal.removed([digest(2)], 0, Tier.L3)
    journal.stored([digest(1)], 0, Tier.L4)
    (batch,) = journal.since(0).batches
    assert batch.seq == 0
    assert batch.events == (
        BlocksStored(ids(1, 2, 3), None, Tier.L3, 16),
        BlocksRemoved(ids(2), Tier.L3),
        BlocksStored(ids(1), None, Tier.L4, 16),
    )


def test_a_page_is_announced_when_its_last_shard_comes_and_withdrawn_with_the_first_that_goes() -> None:
    journals = Journals(epoch=1)
    shards = [PageSpace("m", "bf16", "page_first", 16, shard=Shard(rank, 2)) for rank in (0, 1)]
    keys = [page_key(journals.meet(shard), digest(5)) for shard in shards]
    journals.stored([keys[0]], Tier.L3)
    journals.stored([keys[1]], Tier.L4)
    (journal,) = journals.whole_spaces().values()
    assert events_of(journal) == []
    journals.stored([keys[1]], Tier.L3)
    journals.put_down()
    assert events_of(journal) == [BlocksStored(ids(5), None, Tier.L3, 16)]
    journals.removed([keys[0]], Tier.L3)
    journals.removed([keys[1]], Tier.L3)
    journals.put_down()
    assert events_of(journal, seq=1) == [BlocksRemoved(ids(5), Tier.L3)]


def test_models_have_journals_of_their_own() -> None:
    journals = Journals(epoch=1)
    one, other = (journals.meet(PageSpace(model, "bf16", "page_first", 16)) for model in ("m", "n"))
    journals.stored([page_key(one, digest(1))], Tier.L3)
    assert len(journals.whole_spaces()) == 2
    assert sorted(len(events_of(journal)) for journal in journals.whole_spaces().values()) == [0, 1]
    assert journals.knows(other)
    assert not journals.knows(b"x" * 16)


def test_batches_are_bounded() -> None:
    journal = Journal(WHOLE)
    for number in range(journal_module.MAX_EVENT_HASHES + 10):
        journal.stored([number.to_bytes(32, "big")], 0, Tier.L3)
    first, second = journal.since(0).batches
    assert (first.seq, second.seq) == (0, 1)
    assert [len(batch.events[0].hashes) for batch in (first, second)] == [journal_module.MAX_EVENT_HASHES, 10]  # type: ignore[union-attr]


def churn(journal: Journal, rounds: int) -> None:
    """Say much more than is kept, and leave pages 1 and 2."""
    for number in range(rounds):
        name = number.to_bytes(32, "big")
        journal.stored([name], 0, Tier.L3)
        journal.removed([name], 0, Tier.L3)
    journal.stored([digest(1)], 0, Tier.L3)
    journal.stored([digest(2)], 0, Tier.L4)


def follow(journal: Journal, feed: Feed, index: BlockIndex) -> None:
    """What a reader does: connect, ask for a replay, apply it."""
    step = feed.connected(epoch=1)
    replay = project(index, NODE, step, (), 0.0)
    while replay is not None:
        for batch in journal.since(replay.from_seq).batches:
            project(index, NODE, feed.replayed(replay.ticket, batch.seq), batch.events, 0.0)
        replay = project(index, NODE, feed.replay_ended(replay.ticket), (), 0.0)


def held(index: BlockIndex, *numbers: int) -> int:
    return index.leading(ids(*numbers)).get(NODE, 0)


def test_a_feed_that_follows_sees_what_is_there() -> None:
    journal, feed, index = Journal(WHOLE), Feed(can_replay=True), BlockIndex()
    churn(journal, 10)
    follow(journal, feed, index)
    assert (held(index, 1, 2), index.entries) == (2, 2)
    journal.removed([digest(1)], 0, Tier.L3)
    for batch in journal.since(feed.cursor + 1).batches:
        project(index, NODE, feed.accept(1, batch.seq), batch.events, 0.0)
    assert (held(index, 1), held(index, 2)) == (0, 1)


@pytest.mark.slow
def test_a_feed_that_fell_too_far_behind_gets_a_snapshot() -> None:
    journal, feed, index = Journal(WHOLE), Feed(can_replay=True), BlockIndex()
    journal.stored([digest(9)], 0, Tier.L3)
    follow(journal, feed, index)
    assert held(index, 9) == 1
    journal.removed([digest(9)], 0, Tier.L3)
    churn(journal, journal_module.MAX_KEPT_HASHES // 2 + 10)
    assert journal.since(0).snapshot
    follow(journal, feed, index)
    assert (held(index, 9), held(index, 1, 2)) == (0, 2)


def test_a_number_from_another_epoch_gets_a_snapshot() -> None:
    journal = Journal(WHOLE)
    assert journal.since(0).batches == ()
    assert journal.since(17).batches == ()  # nothing was ever said
    journal.stored([digest(1)], 0, Tier.L3)
    journal.since(0)
    replay = journal.since(17)
    assert replay.snapshot
    assert replay.batches[0].events == (BlocksStored(ids(1), None, Tier.L3, 16),)
